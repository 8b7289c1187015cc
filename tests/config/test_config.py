"""Configuration: everything composes, and what cannot work is refused in one sentence that names the key."""

import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from oar.common.errors import ConfigError
from oar.config import EvaluateConfig, Table1Config, TrainConfig, build, build_function, validated
from oar.config.composed import composed_run
from oar.config.saved import changed_settings
from oar.learner.credit import Method

CONF = Path(__file__).parents[2] / "conf"
# groups of other entry points than train
OF_OTHERS = ("assume", "compared", "condition_sets", "experiment", "subject", "table1_methods")
GROUPS = [
    f"{folder.name}={option.stem}"
    for folder in sorted(CONF.iterdir())
    if folder.is_dir() and folder.name not in OF_OTHERS
    for option in sorted(folder.glob("*.yaml"))
]


def composed(*overrides, name="train"):
    with initialize_config_dir(str(CONF), version_base=None):
        config = compose(name, list(overrides))
    if "output_dir" in config and "hydra" not in config:
        OmegaConf.resolve(config)
    return config


@pytest.mark.parametrize("choice", GROUPS)
def test_every_option_composes_and_can_be_built(choice):
    beside = {
        "benchmark=sheets": ["data=sheets"],
        "model=sheets": ["data=sheets"],
        "model=smollm2_gsm8k": ["data=gsm8k"],
        "model=smollm2_sheets": ["data=sheets"],
        "model=smollm2_parts": ["data=parts"],
        "benchmark=parts": ["data=parts"],
        "probe=reward_model": ["probe.path=folder"],
    }
    cfg = validated(composed(choice, *beside.get(choice, []), "model.path=folder"), TrainConfig)
    Method.built(cfg)
    build("data.source", cfg.data.source)
    for name in set(cfg.reward) - {"own"}:  # which names nothing yet
        build_function(f"reward.{name}", {key: value for key, value in cfg.reward[name].items() if key != "weight"})
    if cfg.model.teach is not None:
        build("model.teach", cfg.model.teach)


@pytest.mark.parametrize(
    ("program", "choice"),
    [
        ("fidelity", "compared=embedded"),
        ("fidelity", "compared=smollm2"),
        ("recall", "subject=words"),
        ("recall", "subject=english"),
    ],
)
def test_what_an_option_says_is_not_overruled_by_its_program(program, choice):
    said = OmegaConf.load(CONF / f"{choice.replace('=', '/')}.yaml")
    found = composed(choice, name=program)
    values = {key: value for key, value in said.items() if not OmegaConf.is_config(value)}
    assert {key: found[key] for key in values} == values


def test_entry_configs_are_valid():
    validated(composed(name="evaluate"), EvaluateConfig)
    validated(composed(name="table1"), Table1Config)


def test_taught_models_are_kept_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("OAR_TEACH_DIR", raising=False)
    assert composed("profile=sheets").model.teach_dir == "artifacts/base-model"
    monkeypatch.setenv("OAR_TEACH_DIR", str(tmp_path))
    assert validated(composed("profile=sheets"), TrainConfig).model.teach_dir == str(tmp_path)


def test_profiles_choose_groups_and_keys_and_the_command_line_has_the_last_word():
    cfg = validated(composed("profile=paper", "model.path=folder"), TrainConfig)
    assert (cfg.model.name, cfg.data.name, cfg.benchmark.name) == ("qwen2_5_7b", "math", "paper_suite")
    assert (cfg.template, cfg.gating.tau, cfg.gating.beta, cfg.gating.floor) == ("qwen_math", 0.4, 2.0, 0.1)
    other = composed("profile=paper", "model=qwen2_5_math_7b", "template=r1", "learner.lr=1e-7", "model.path=folder")
    assert (other.model.name, other.template, other.learner.lr) == ("qwen2_5_math_7b", "r1", 1e-7)
    assert other.output_dir == "outputs/paper-grpo-seed1"


def test_what_a_counterfactual_asks_for():
    cfg = validated(composed("method=oar_p", "counterfactual=resampled", "counterfactual.draws=4"), TrainConfig)
    assert (cfg.counterfactual.draws, cfg.method.estimator["draws"]) == (4, 4)
    once = validated(composed("method=oar_p", "counterfactual=resampled"), TrainConfig)
    assert cfg.identity() != once.identity()
    assert "draws" not in str(
        once.computed()["method"]
    )  # so that runs from before there were several keep their identity
    for wrong in ("counterfactual=pad counterfactual.draws=2", "counterfactual=text counterfactual.text=null"):
        with pytest.raises(ConfigError, match=r"counterfactual\.(draws|text) must be"):
            validated(composed(*wrong.split()), TrainConfig)


def test_a_model_brings_its_template_and_the_command_line_has_the_last_word():
    cfg, plain = (validated(composed("model=smollm2", *more), TrainConfig) for more in ((), ("template=plain",)))
    assert (cfg.template, plain.template) == ("question_answer", "plain")
    assert cfg.identity() != plain.identity()
    assert validated(composed("model=smollm2", name="evaluate"), EvaluateConfig).template == "question_answer"
    assert validated(composed(), TrainConfig).template is None


@pytest.mark.parametrize("profile", ["embedded", "laptop", "laptop_gsm8k", "paper", "single_gpu"])
def test_a_debugging_run_is_small_in_every_profile(profile):
    cfg = validated(composed("debug=one_step", f"profile={profile}", "model.path=folder", "learner.lr=1"), TrainConfig)
    assert (cfg.learner.steps, cfg.learner.batch_size, cfg.evaluation.final_problems) == (1, 32, 2)
    assert (cfg.profile, cfg.tracking.mode, cfg.learner.lr) == (profile, "disabled", 1)
    assert cfg.output_dir.startswith("outputs/debug/2")


@pytest.mark.parametrize("profile", ["paper", "single_gpu"])
def test_a_profile_without_its_model_is_refused(profile):
    with pytest.raises(ConfigError, match=r"model\.path must be a folder"):
        validated(composed(f"profile={profile}"), TrainConfig)


def test_every_key_has_a_comment():
    """Its unit and source, on its own line. `name` and `_target_` speak for themselves; Hydra's own block documents itself.

    A question (of conf/report.yaml) does too. Experiments give values to keys of conf/study.yaml and conf/signals.yaml, and are
    texts of pages for the rest.
    """
    missing = []
    for file in sorted(set(CONF.rglob("*.yaml")) - set((CONF / "experiment").iterdir())):
        text = file.read_text().split("\nhydra:")[0]
        ablation = "\ndefaults:" in text and file.parent != CONF  # says in its first line which keys it changes
        for number, line in enumerate(text.splitlines(), start=1):
            key = re.match(r"^\s*([a-z_0-9]+): \S", line)
            spoken = line.endswith("?")
            if (
                key
                and not ablation
                and not spoken
                and "#" not in line
                and key[1] not in ("name", "_target_", "profile")
            ):
                missing.append(f"{file.relative_to(CONF)}:{number}: {line}")
    assert missing == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("gating.tau=1.5", "gating.tau must be between 0 and 1, but is 1.5"),
        ("gating.floor=0", "gating.floor"),
        ("gating.threshold=median", "quantile, absolute"),
        ("learner.batch_size=100", r"multiple of learner.num_generations \(8\), but is 100"),
        ("learner.updates_per_rollout=3", r"divisor of the number of groups \(16\)"),
        ("learner.aggregation=sum", "sequence_mean, token_mean, constant"),
        ("learner.ratio_level=group", "token, sequence"),
        ("learner.overlong=drop", "keep, mask, soft_penalty"),
        ("model.lora={r: 0, alpha: 8, targets: [q_proj]}", "model.lora.r"),
        ("model.lora={r: 4, alpha: 8, targets: []}", "model.lora.targets"),
        ("model.lora={r: 4, alpha: 8, targets: [q_proj], dropout: 0.1}", "dropout"),
        ("model.lora=true", "model.lora must hold r, alpha, targets, but is True"),
        ("learner.max_refills=-1", "learner.max_refills"),
        ("model.teach_dir=", "model.teach_dir must be a folder for taught models, but is ''"),
        ("model.teach_dir=null", "model.teach_dir must be a folder for taught models, but is None"),
        ("learner.micro_batch_tokens=0", "learner.micro_batch_tokens must be 1 or more, but is 0"),
        ("learner.ranks=129", "learner.ranks must be 1 or more, and few enough for an update of 128 completions"),
        ("learner.lr=fast", "learner.lr"),
        ("learner.adam_beta1=1.5", "learner.adam_beta1"),
        ("model.dtype=float16", "model.dtype"),
        ("benchmark.sets=[]", "benchmark.sets"),
        ("rollout.max_num_seqs=0", "rollout.max_num_seqs"),
        (
            "rollout={restart: true, url: 'http://127.0.0.1:1'}",
            "rollout.url must be null where rollout.restart is true",
        ),
        ("rollout.max_new_tokens=256", "rollout.max_model_len"),
        ("probe.name=best", "warmup, lt_logits, as_mean, as_joint"),
        (
            "probe=reward_model",
            "probe.path must be a reward model's folder with probe=reward_model, else null, but is None",
        ),
        ("probe.path=folder", "probe.path must be a reward model's folder with probe=reward_model, else null"),
        ("probe.reference=solution", "probe.reference must be solution or answer with probe=reference, else null"),
        ("tracking.mode=loud", "offline, online, disabled"),
        ("tracking.tags=['']", "tags of 1 to 64 characters"),
        (f"tracking.tags=[ok,{'x' * 65}]", "tags of 1 to 64 characters"),
        ("tracking.project=team/oar", "with the team under tracking.entity"),
        ("+learner.extra=1", "extra"),
        ("~reward.answer", "reward must be at least one term"),
        ("reward.answer.weight=much", r"reward\.answer\.weight must be a finite number, but is 'much'"),
        ("reward.answer=1", r"reward\.answer must be keys, _target_ among them, but is 1"),
        ("resume=maybe", "never, auto"),
    ],
)
def test_bad_values_are_refused(override, said):
    with pytest.raises(ConfigError, match=said) as caught:
        validated(composed(override), TrainConfig)
    assert str(caught.value).count("\n") == 0


def test_the_released_drift_needs_completions_in_one_order():
    validated(composed("gating=released_drift"), TrainConfig)
    with pytest.raises(ConfigError, match=r"learner\.ranks must be 1 where gating\.threshold is released_drift"):
        validated(composed("gating=released_drift", "learner.ranks=2"), TrainConfig)


def test_the_overlong_buffer_is_a_part_of_the_completion():
    validated(composed("learner.overlong_buffer=96"), TrainConfig)
    with pytest.raises(ConfigError, match=r"overlong_buffer must be below rollout.max_new_tokens \(96\), but is 96"):
        validated(composed("learner.overlong=soft_penalty", "learner.overlong_buffer=96"), TrainConfig)


def test_overrides_of_a_measurement_that_do_not_fit_are_explained():
    with initialize_config_dir(str(CONF), version_base=None):
        assert composed_run(["method=oar_g", "learner.steps=7"]).learner.steps == 7
        for override, said in (("method=oarg", "did you mean oar_g"), ("learner.stps=7", "did you mean learner.steps")):
            with pytest.raises(ConfigError, match=f"cannot be composed with {override}: .*{said}"):
                composed_run([override])


@pytest.mark.parametrize("method", ["shuffled", "inverted"])
def test_controls_made_from_oar_p_wrap_oar_p_itself(method):
    choices = ("counterfactual=resampled",)
    oar_p = composed("method=oar_p", *choices).method.estimator
    assert composed(f"method={method}", *choices).method.estimator.of == oar_p


def test_methods_differ_from_grpo_in_what_they_name():
    methods = [path.stem for path in (CONF / "method").glob("*.yaml")]
    composed_runs = {name: composed(f"method={name}") for name in methods}
    composed_methods = {name: run.method for name, run in composed_runs.items()}
    others = {name: list(run.reward) for name, run in composed_runs.items() if list(run.reward) != ["answer"]}
    assert others == {"random_reward": ["random"], "crpo": ["answer", "format"]}
    assert not any(method.times_surprisal for method in composed_methods.values())
    assert all(method.name == name for name, method in composed_methods.items())
    plain = {
        name
        for name, method in composed_methods.items()
        if "Uniform" in method.estimator._target_ and not (method.surrogate or method.auxiliary)
    }
    assert plain == {"grpo", "random_reward"}


def test_an_estimator_with_a_wrong_key_is_refused():
    cfg = validated(composed("method=oar_g", "+method.estimator.sigma=1"), TrainConfig)
    with pytest.raises(ConfigError, match=r"method\.estimator.*sigma"):
        build("method.estimator", cfg.method.estimator)


def test_targets_refuse_what_cannot_work():
    for overrides, said in (
        (["method=oar_g", "method.estimator.noise_std=0"], "noise_std must be above 0"),
        (["data.source.tiers=[]"], "at least one tier"),
        (["data.source.tiers=[words9]"], "words9"),
    ):
        cfg = validated(composed(*overrides), TrainConfig)
        with pytest.raises(ConfigError, match=said):
            build("it", cfg.method.estimator) if "method=oar_g" in overrides else build("it", cfg.data.source)


def test_measure_follows_what_is_evaluated():
    def measure(*overrides):
        return validated(composed(*overrides), TrainConfig).measure()

    assert measure("learner.lr=1e-5", "seed=9") == measure()
    assert measure("evaluation.k=8") != measure()
    assert measure("benchmark.sets=[words1]") != measure()


def test_what_changed_since_a_run_is_named(tmp_path):
    file = tmp_path / "config.yaml"
    OmegaConf.save(OmegaConf.structured(validated(composed("method=oar_g", "seed=2"), TrainConfig)), file)
    again = validated(composed("method=oar_g", "seed=2", "learner.steps=7", "output_dir=elsewhere"), TrainConfig)
    assert changed_settings(file, again) == ""
    other = validated(composed("method=oar_g", "gating.tau=0.5", "method.estimator.noise_std=0.3"), TrainConfig)
    assert set(changed_settings(file, other).split(", ")) == {
        "seed was 2 and is 1",
        "gating.tau was 0.4 and is 0.5",
        f"method.estimator.noise_std was {again.method.estimator['noise_std']} and is 0.3",
    }
    file.write_text("what the run was made with")
    assert changed_settings(file, other) == ""


def test_identity_follows_what_a_run_computes_and_nothing_else():
    def identity(*overrides):
        return validated(composed(*overrides), TrainConfig).identity()

    same = (
        "output_dir=elsewhere",
        "learner.steps=7",
        "rollout.url=http://127.0.0.1:1",
        "tracking=disabled",
        "resume=auto",
    )
    assert {identity(override) for override in same} == {identity()}
    for override in ("seed=2", "gating.tau=0.5", "method=oar_g", "learner.lr=1e-5", "model.teach.seed=3"):
        assert identity(override) != identity()
