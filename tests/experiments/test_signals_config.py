"""The configuration of the experiments on signals: what cannot work is refused in one sentence before anything starts."""

import pytest
from hydra import initialize_config_dir

from experiments.shared.subjects import Plan
from experiments.signals.__main__ import MEASURES, PAGES, SignalsConfig
from oar.common.errors import ConfigError
from oar.config import validated
from tests.config.test_config import CONF, composed
from tests.experiments.test_recall_config import plan as recall_plan


def plan(*overrides: str) -> Plan:
    cfg = validated(composed(*overrides, name="signals"), SignalsConfig)
    with initialize_config_dir(str(CONF), version_base=None):
        found = Plan.of(cfg)
        MEASURES[cfg.study](found)
        return found


@pytest.mark.parametrize("study", PAGES)
def test_every_experiment_looks_at_the_completions_of_the_recall(study: str) -> None:
    found, recall = plan(f"experiment={study}"), recall_plan()
    assert found.cfg.output_dir.endswith(study)
    assert list(found.signals) == list(found.cfg.signals) == list(found.cfg.shown)
    assert found.problems == recall.problems
    assert found.training_job().folder == recall.training_job().folder
    assert {one for pair in found.cfg.pairs for one in pair} <= set(found.signals)


def test_second_draws_differ_from_the_first_in_their_seed_alone() -> None:
    signals = plan("experiment=mask_artefacts").signals
    again = [name for name in signals if name.endswith("_again")]
    assert len(again) == 2
    for name in again:
        first, second = signals[name.removesuffix("_again")], signals[name]
        assert first.method == second.method
        assert first.seed != second.seed


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("study=best", "study must be one of mask_artefacts, proxy_mismatch, error_location, but is 'best'"),
        ("shown=[oar_p,best]", "shown must name signals .*'best'"),
        ("shown=[oar_p,oar_p_resampled]", "pairs must name signals"),
        ("shown=[oar_p,surprisal] pairs=[]", "signals that change tokens .*'surprisal'"),
        ("samples=0", "samples must be 1 or more"),
    ],
)
def test_bad_values_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        plan("experiment=mask_artefacts", *override.split())
    assert str(caught.value).count("\n") == 0
