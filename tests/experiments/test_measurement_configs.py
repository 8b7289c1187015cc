"""What measurements do by default, and what is refused in one sentence before anything starts."""

import json
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from experiments.bench_importance.update import PlainImportance
from experiments.bench_learner.page import Where
from experiments.bench_learner.sides import SIDES
from experiments.gradient_signal.__main__ import planned
from experiments.signals.__main__ import MEASURES
from oar.analysis.reports.methods import METHOD, kind
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.method.importance import PerturbationImportance, UniformImportance
from oar.names import COUNTERFACTUALS
from oar.tasks.embedded.base_model import model_key
from oar.tasks.words.teaching import TeachConfig
from tests.config.test_config import CONF, composed
from tests.experiments.measurements import config, prepared

REFUSED = {
    "recall": [
        ("split=final", "split must be one of tuning, curve, but is 'final'"),
        ("samples=0", "samples must be 1 or more, but is 0"),
        ("reference=best", "must name signals .*'best'"),
        ("pairs=[[oar_p]]", "two signals"),
        ("pairs=[[oar_p,best]]", "must name signals .*'best'"),
        ("+models.other=auto", r"models\.other must be a folder"),
        ("~models.base ~models.trained", "at least one model"),
        ("k=[0]", "every entry of k"),
        ("probe.warmup_steps=-1", r"probe\.warmup_steps"),
        ("overrides=['learner.lr=fast']", r"learner\.lr"),
        ("+signals.new=['method=best']", "cannot be composed with .*method=best: method must be one of"),
        ("+signals.new=['method.estimator.sigma=1']", "cannot be composed"),
        ("+signals.new=['gating.tau=2']", r"gating\.tau"),
    ],
    "signals": [
        (
            "study=best",
            "study must be one of mask_artefacts, proxy_mismatch, error_location, method_signals, open_outcomes, but is 'best'",
        ),
        ("shown=[oar_p,best]", "shown must name signals .*'best'"),
        ("shown=[oar_p,oar_p_resampled]", "pairs must name signals"),
        ("shown=[oar_p,surprisal] pairs=[]", "signals that change tokens .*'surprisal'"),
        ("shown=[oar_p,oar_p_knockout] pairs=[]", "one of counterfactual=resampled.*but has pad, knockout"),
        ("shown=[oar_p_knockout,oar_p,oar_p_resampled] pairs=[]", "a signal of counterfactual=pad first"),
        ("study=proxy_mismatch shown=[] pairs=[]", r"shown must be signals, one at least, but is \[\]"),
        ("study=method_signals shown=[entropy,oar_p] pairs=[]", "shown must begin with exact OAR-P .*'entropy'"),
        ("samples=0", "samples must be 1 or more"),
        ("study=open_outcomes", "scorer must be the folder of a reward model"),
    ],
    "fidelity": [
        ("split=final", "split must be one of tuning, curve"),
        ("problems=0", "problems must be 1 or more"),
        ("reference=best", "must name signals .*'best'"),
        ("~conditions +conditions={mine:{weights:null}}", "conditions must hold one with weights"),
        ("pairs=[]", "pairs must hold two signals each"),
        ("pairs=[[oar_gn,best]]", "must name signals .*'best'"),
        ("+series.line={a:best}", "must name signals .*'best'"),
        ("+conditions.base.probe=best", "probe.name must be one of"),
        ("+conditions.deep.teach.layers=6", "layers"),
        ("+conditions.mine={weights:folder,teach:{filler:1}}", "names a folder as weights, so it can have no teach"),
        ("overrides=['model.path=folder','model.teach=null']", "needs model.teach"),
        ("+signals.oar_g.noise_std=0", "noise_std must be above 0"),
        ("overrides=['learner.lr=fast']", r"learner\.lr"),
        ("overrides=['method=best']", "cannot be composed with method=best"),
    ],
    "gradient_signal": [
        ("batches=[6]", "multiples of prompts"),
        ("judged=8", "one of batches"),
        ("coordinates=0", "coordinates must be null, or 1 or more, but is 0"),
        ("units=2", "units must be 6 or more, but is 2"),
        ("work_dir=", "work_dir must be a folder, but is ''"),
        ("reference=best", "one of arms"),
        ("arms.grpo=['method=nobody']", "cannot be composed"),
    ],
    "bench_importance": [
        ("rounds=0", "rounds must be 1 or more"),
        ("parts=[speed]", "parts must be some of synthetic, embedded, steps, methods"),
        ("parts=[steps]", "steps without embedded"),
        ("~variants.oar_gn", "variants must name oar_gn"),
        ("+variants.plain=['method=oar_p']", "must not name plain"),
        ("+methods.oar_g=['method=oar_g']", "methods must not name oar_g, which step_methods names"),
        ("+methods.new=['method=best']", "cannot be composed with .*method=best"),
        ("step_methods=[oar_p]", "step_methods must be names of variants, grpo among them"),
        ("synthetic_methods=[grpo,oar_p,window8,best]", "synthetic_methods must be names"),
        ("grid=tpu", "grid must be one of auto, cpu, gpu"),
        ("+grids.cpu.sizes.embedded.lengths={4:1}", "lengths of 5 or more"),
        ("+variants.new=['method=best']", "cannot be composed with .*method=best"),
        ("+variants.new=['method=oar_p','method.estimator.window=-1']", "window must be 0 or more"),
    ],
    "bench_learner": [
        ("rounds=0", "rounds must be 1 or more"),
        ("sides=[oar]", "sides must be some of .* oar and trl among them"),
        ("sides=[oar,trl,verl]", "sides must be some of"),
        ("batches.spread=0", "share above 0"),
        ("headline.length=512", "headline must be one of the cases"),
        ("overrides=['learner.aggregation=token_mean']", "aggregation must be sequence_mean"),
        ("sizes.qwen_slice.lengths={2048:3}", "multiple of learner.num_generations"),
        ("overrides=['learner.micro_batch_tokens=2']", "learner.micro_batch_tokens must be 1"),
        ("overrides=['method=best']", "cannot be composed"),
    ],
    "bench_precision": [
        ("completions=0", "completions must be 1 or more, but is 0"),
        ("spreads=[]", "spreads must be numbers above 0"),
    ],
}


@pytest.mark.parametrize(
    ("name", "override", "said"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_bad_values_are_refused(name: str, override: str, said: str) -> None:
    experiment = ["experiment=mask_artefacts"] if name == "signals" else []
    with pytest.raises(ConfigError, match=said) as caught:
        prepared(name, *experiment, *override.split())
    assert str(caught.value).count("\n") == 0


def test_recall_measures_every_estimator_and_every_counterfactual() -> None:
    found = prepared("recall", "problems=2")
    estimators = {signal.method.name for signal in found.signals.values()}
    assert estimators >= {"grpo", "random", "position", "entropy", "oar_g", "oar_gn", "oar_p", "oar_p_window"}
    assert estimators >= {"oar_p_routes", "oar_p_budget"}
    kinds = {s.method.estimator["counterfactual"] for s in found.signals.values() if s.method.name == "oar_p"}
    assert kinds == set(COUNTERFACTUALS)
    assert found.settings.probe.name == "as_mean"
    assert {problem.benchmark for problem in found.problems} == set(found.settings.benchmark.sets)
    assert all("-curve-" in problem.id for problem in found.problems)
    assert found.training.learner.steps == 60
    assert found.training.method.name == "grpo"


def test_a_signal_may_name_a_probe_of_its_own() -> None:
    plan = prepared("recall", "probe=as_joint", "+signals.mine=['method=oar_p','probe=reference']")
    assert plan.signals.pop("mine").probe.reference == "solution"
    assert {signal.probe.name for signal in plan.signals.values()} == {"as_joint"}


def test_the_trained_run_is_kept_by_what_makes_it() -> None:
    few = "~signals", "+signals={uniform:['method=grpo']}", "reference=uniform", "pairs=[]"

    def folder(*overrides: str) -> Path:
        return prepared("recall", *few, *overrides).training_job().folder

    assert folder("problems=3", "probe=lt_logits") == folder()
    assert (
        len({folder(), *(folder(change) for change in ("train_steps=7", "seed=2", "overrides=['learner.lr=1e-5']"))})
        == 4
    )


@pytest.mark.parametrize("study", MEASURES)
def test_every_experiment_on_signals_looks_at_the_completions_of_the_recall(study: str) -> None:
    found, recall = prepared("signals", f"experiment={study}", "scorer=folder"), prepared("recall")
    assert found.cfg.output_dir.endswith(study)
    assert list(found.signals) == list(found.cfg.signals) == list(found.cfg.shown)
    assert found.problems == recall.problems
    assert found.training_job().folder == recall.training_job().folder
    assert {one for pair in found.cfg.pairs for one in pair} <= set(found.signals)


def test_second_draws_differ_from_the_first_in_their_seed_alone() -> None:
    signals = prepared("signals", "experiment=mask_artefacts").signals
    again = [name for name in signals if name.endswith("_again")]
    assert len(again) == 2
    for name in again:
        first, second = signals[name.removesuffix("_again")], signals[name]
        assert first.method == second.method
        assert first.seed != second.seed


def taught(condition) -> str:
    teach = {key: value for key, value in condition.settings.model.teach.items() if key != "_target_"}
    return model_key(TeachConfig(**teach))


def test_fidelity_has_every_condition_and_leaves_out_what_has_no_weights() -> None:
    found = prepared("fidelity", "problems=2")
    assert found.skipped == ["trained"]
    by_name = {condition.name: condition for condition in found.conditions}
    assert by_name["lt_logits"].settings.probe.name == "lt_logits"
    assert taught(by_name["base"]) == taught(by_name["untrained"]) == model_key(TeachConfig())
    keys = {name: taught(by_name[name]) for name in ("base", "long", "deep", "wide", "tied")}
    assert len(set(keys.values())) == 5
    assert taught(by_name["tied_untrained"]) == keys["tied"]
    assert [name for name, condition in by_name.items() if condition.random_weights] == ["untrained", "tied_untrained"]
    assert by_name["long"].max_new_tokens == 192
    assert {problem.benchmark for problem in by_name["base"].problems} == set(by_name["base"].settings.benchmark.sets)
    trained = prepared("fidelity", "trained=some/folder").conditions[-1]
    assert (trained.name, trained.settings.model.path) == ("trained", "some/folder")


def test_fidelity_of_a_pretrained_model_reads_its_own_text_and_peoples_solutions(tmp_path) -> None:
    """Each condition has problems of its own; the data set's solutions are whole completions, with an answer behind a marker."""
    solved = {"id": "a", "question": "What is 2 + 3?", "answer": "5", "solution": "2 + 3 = 5"}
    (tmp_path / "gsm8k_test.jsonl").write_text("\n".join(json.dumps({**solved, "id": name}) for name in "abcd"))
    solutions = f"['model=smollm2','benchmark=gsm8k','benchmark.path={tmp_path}','rollout.max_new_tokens=150']"
    found = prepared("fidelity", "compared=smollm2", "problems=1", f"conditions.solutions.overrides={solutions}")
    own, written = found.conditions
    assert [condition.settings.model.name for condition in found.conditions] == ["smollm2_english", "smollm2"]
    assert [problem.benchmark for problem in own.problems] == [f"english{tier}" for tier in range(1, 6)]
    assert (written.completions, written.max_new_tokens) == ("solutions", 150)
    assert {problem.solution for problem in written.problems} == {"2 + 3 = 5"}
    assert found.cfg.reference == "oar_p_knockout"


def test_the_gradients_condition_of_filler_is_another_model_and_leaves_room_for_longer_completions() -> None:
    conditions = config("gradient_signal").conditions
    default, filler = (validated(composed(*conditions[name]), TrainConfig) for name in ("default", "filler_12"))
    assert (default.model.teach["filler"], filler.model.teach["filler"]) == (0, 12)
    assert filler.rollout.max_new_tokens == filler.model.teach["max_new_tokens"] == 192
    assert filler.rollout.max_model_len > default.rollout.max_model_len


def test_gradients_on_english_are_those_of_the_pretrained_model() -> None:
    cfg = config("gradient_signal", "experiment=english_gradients")
    with initialize_config_dir(str(CONF), version_base=None):
        arms = planned(cfg, cfg.conditions["english"])
    assert {one.model.name for one in arms.values()} == {"smollm2_english"}
    assert {one.learner.num_generations for one in arms.values()} == {4}
    assert arms["oar_p_knockout"].method.estimator["counterfactual"] == "knockout"


def test_the_bench_of_importance_has_a_row_for_every_method() -> None:
    """But for controls and oracles, of which nobody asks what they cost."""
    found = prepared("bench_importance")
    rows = {cfg.method.name for cfg in (*found.variants.values(), *found.methods.values())}
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")}
    assert {name for name in methods if kind(name) == METHOD} <= rows
    assert {"sinkhorn", "chamfer"} == {
        found.methods[name].method.estimator["distance"] for name in ("shear", "shear_chamfer")
    }


@pytest.mark.usefixtures("on_cpu")
def test_the_bench_of_importance_measures_what_the_eight_numbers_need() -> None:
    found = prepared("bench_importance")
    families = ("window", "routes", "budget")
    assert set(found.candidates()) == {name for name in found.variants if name.startswith(families)}
    assert found.estimators["window8"] == PerturbationImportance(window=8)
    assert found.estimators["window8_budget16"] == PerturbationImportance(window=8, budget=16)
    assert {(case.size, case.length) for case in found.synthetic_cases()} == {
        (size, length) for size in ("embedded", "half_billion_shape") for length in (64, 256, 1024)
    }
    assert all(variant.probe.name == "as_mean" for variant in found.variants.values())
    # The made-up small model is the embedded one.
    teach, made_up = found.settings.model.teach, found.grid.sizes["embedded"].architecture
    assert made_up["num_hidden_layers"] == teach["num_layers"]
    assert made_up["num_attention_heads"] == teach["num_heads"]
    for key in ("hidden_size", "intermediate_size", "num_key_value_heads", "rope_theta", "initializer_range"):
        assert made_up[key] == teach[key]


def test_the_grid_bounds_the_forwards_of_every_method() -> None:
    methods = prepared("bench_importance", "grid=gpu").synthetic_methods()
    assert methods["oar_p"] == PerturbationImportance(max_tokens_per_forward=32768)
    assert methods["plain"] == PlainImportance(32768)
    assert methods["grpo"] == UniformImportance()


def test_the_bench_of_the_learner_has_its_headline_and_sides() -> None:
    cfg = config("bench_learner")
    assert set(cfg.sides) == set(SIDES)
    assert Where("qwen_slice", 2048, "equal") in [where for where, _ in cfg.cases()]
    # A twelfth of Qwen2.5-0.5B.
    architecture = cfg.sizes["qwen_slice"].architecture
    assert architecture["num_hidden_layers"] * 12 == 24
    assert architecture["vocab_size"] == round(151936 / 12)


@pytest.mark.parametrize("name", ["recall", "signals experiment=mask_artefacts"])
def test_signals_of_a_real_model_are_looked_at_on_problems_in_english(name: str) -> None:
    program, *overrides = name.split()
    plan = prepared(program, "subject=english", *overrides)
    assert {problem.benchmark for problem in plan.problems} == {"english1", "english2", "english3"}
    assert {signal.model.name for signal in plan.signals.values()} == {"smollm2_english"}
    assert list(plan.cfg.models) == ["base"]
