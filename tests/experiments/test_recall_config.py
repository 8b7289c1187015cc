"""The configuration of oracle recall: what cannot work is refused in one sentence before anything starts."""

import pytest
from hydra import initialize_config_dir

from experiments.recall.__main__ import Plan, RecallConfig
from oar.common.errors import ConfigError
from oar.config import validated
from tests.config.test_config import CONF, composed


def plan(*overrides: str) -> Plan:
    cfg = validated(composed(*overrides, name="recall"), RecallConfig)
    with initialize_config_dir(str(CONF), version_base=None):
        return Plan.of(cfg)


def test_the_default_measures_every_estimator_and_every_counterfactual() -> None:
    found = plan("problems=2")
    estimators = {signal.method.name for signal in found.signals.values()}
    assert estimators >= {
        "grpo",
        "random",
        "position",
        "entropy",
        "oar_g",
        "oar_gn",
        "oar_p",
        "oar_p_window",
        "oar_p_routes",
        "oar_p_budget",
    }
    kinds = {s.method.estimator["counterfactual"] for s in found.signals.values() if s.method.name == "oar_p"}
    assert kinds == {"pad", "random_token", "resampled", "knockout"}
    assert found.settings.probe.name == "as_mean"
    assert {problem.benchmark for problem in found.problems} == set(found.settings.benchmark.sets)
    assert all("-curve-" in problem.id for problem in found.problems)
    assert found.training.learner.steps == 60
    assert found.training.method.name == "grpo"


def test_the_trained_run_is_kept_by_what_makes_it() -> None:
    folder = plan().training_job().folder
    assert plan("problems=3", "probe=lt_logits").training_job().folder == folder
    for change in ("train_steps=7", "seed=2", "overrides=['learner.lr=1e-5']"):
        assert plan(change).training_job().folder != folder, change


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("split=final", "split must be one of tuning, curve"),
        ("samples=0", "samples must be 1 or more"),
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
)
def test_bad_values_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        plan(*override.split())
    assert str(caught.value).count("\n") == 0
