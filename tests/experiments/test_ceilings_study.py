"""The study of steps to a threshold: which runs its configuration asks for, and what it refuses before they begin."""

import json
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from experiments.study.__main__ import StudyConfig, overrides_of_all
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.runs.folder import finished
from tests.config.test_config import CONF, composed
from tests.programs import run as run_program


def study(*overrides: str) -> StudyConfig:
    with initialize_config_dir(str(CONF), version_base=None):
        from hydra import compose

        return validated(compose("study", overrides=["experiment=ceilings", *overrides]), StudyConfig)


def test_a_folder_without_a_page_is_told_before_the_runs(tmp_path: Path) -> None:
    chosen = ("experiment=ceilings", "only=[one]", "seeds=1", f"work_dir={tmp_path / 'work'}")
    code, output = run_program("study", *chosen, f"beside=[{tmp_path}]", f"output_dir={tmp_path / 'out'}")
    assert code == 2
    assert "has no steps.csv" in output
    assert not (tmp_path / "work").exists()


def test_a_first_look_is_not_promised_conclusions_of_its_own() -> None:
    assert "(what came of it stands in results/ceilings under *What follows*)" in study().ran


def test_every_arm_of_a_condition_is_run_at_every_rate() -> None:
    arms = "arms_of={one: [grpo, oar_p], share: [grpo], all: [oracle_signed]}"
    cfg = study(arms, "rates=[1e-3, 1e-4]", "only=[one, share, all]")
    found = [(condition, arm, overrides[-1]) for condition, arm, overrides in cfg.compared()]
    pairs = [("one", "grpo"), ("one", "oar_p"), ("share", "grpo"), ("all", "oracle_signed")]
    assert found == [(*pair, f"learner.lr={rate}") for rate in (1e-3, 1e-4) for pair in pairs]


def test_one_condition_of_many_can_be_run() -> None:
    cfg = study("only=[share, one]", "arms_of.share=[grpo]", "arms_of.one=[oar_p]", "rates=[1e-3]")
    assert [(condition, arm) for condition, arm, _ in cfg.compared()] == [("share", "grpo"), ("one", "oar_p")]
    assert list(cfg.conditions) == ["share", "one"]
    assert len(study().conditions) > 2
    with pytest.raises(ConfigError, match=r"only must be one of one, share, all, .*, but is 'two'"):
        study("only=[two]")


def test_what_is_typed_replaces_what_the_study_says_of_all_runs() -> None:
    cfg = study("seeds=1")
    typed = ["learner.steps=400", "~benchmark.options", "+benchmark.options={}"]  # both of one key are needed
    found = overrides_of_all(cfg, ["experiment=ceilings", "seeds=1", *typed])
    of_study = [text for text in cfg.overrides if not text.startswith("learner.steps=")]
    assert found == [*of_study, *typed]  # the page would say 300 steps and 400
    assert len(of_study) == len(cfg.overrides) - 1


def test_a_rate_that_rates_would_replace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.lr cannot be given here: rates sets it; type rates=\[3e-4\]"):
        overrides_of_all(study("rates=[1e-3]"), ["learner.lr=0.1"])
    assert "learner.lr=0.1" in overrides_of_all(study("rates=[]"), ["learner.lr=0.1"])


def test_an_arm_that_no_condition_runs_is_told() -> None:
    mine = "+arms.mine=['method=oar_p']"  # `arms_of` names the arms of each condition, so it would be left out without a word
    with pytest.raises(ConfigError, match=r"arms\.mine is run under no condition.*'arms_of\.CONDITION=\[grpo,mine\]'"):
        overrides_of_all(study(mine, "only=[one]"), [mine])
    named = "arms_of.one=[grpo,mine]"
    overrides_of_all(study(mine, named, "only=[one]"), [mine, named, "~arms.spo"])


def test_larger_batches_and_longer_sheets_are_conditions() -> None:
    """The same base model as in smaller batches, another one for longer sheets."""
    cfg = study()
    made = {
        name: validated(composed(*cfg.overrides, *changed), TrainConfig) for name, changed in cfg.conditions.items()
    }
    for name in ("one", "share"):
        small, large = made[name], made[f"{name}_large"]
        assert (small.learner.batch_size, small.learner.num_generations) == (8, 4)
        assert (large.learner.batch_size, large.learner.num_generations) == (64, 8)
        assert small.model == large.model
    assert made["one_long"].model != made["one"].model
    assert made["one_long"].data.source["sheet"]["entries"] == 2 * made["one"].data.source["sheet"]["entries"]


def test_names_that_are_nothing_are_refused() -> None:
    for override in ("+arms_of.two=[grpo]", "arms_of.one=[nobody]", "+expected.two={}"):
        with pytest.raises(
            ConfigError, match="arms_of, seeds_of, in_words and expected must name conditions and arms, but name"
        ):
            study(override)


def test_a_run_that_ended_early_has_finished_only_where_it_reached_its_threshold(tmp_path: Path) -> None:
    settings = validated(composed("evaluation.stop_at=0.9", "learner.steps=10"), TrainConfig)
    other = validated(composed("learner.steps=10"), TrainConfig)
    known = {"identity": settings.identity(), "measure": settings.measure(), "step": 5}
    for reached, done in ((True, True), (False, False)):
        (tmp_path / "evaluation.json").write_text(json.dumps({"provenance": known | {"reached": reached}}))
        assert (finished(tmp_path, settings) is not None) == done
        assert finished(tmp_path, other) is None  # measured otherwise
