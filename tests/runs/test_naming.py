"""What a run is called at W&B."""

import pytest

from oar.config import TrainConfig, validated
from oar.runs.naming import named
from tests.config.test_config import composed


def settings(*overrides: str) -> TrainConfig:
    return validated(composed(*overrides), TrainConfig)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["method=oar_g", "gating.tau=0.4", "seed=1"], "oar_g-tau0.4-seed1"),
        (["method=oar_g", "gating.tau=0.2", "gating.beta=1", "seed=2"], "oar_g-tau0.2-beta1-seed2"),
        (["method=oar_g", "++seed=2", "++gating.tau=0.2"], "oar_g-tau0.2-seed2"),
        (["learner.lr=1e-5", "gating=boost_only"], "grpo-lr1e-5-boost_only-seed1"),
        (["method=grpo", "learner.steps=0", "seed=3"], "base-seed3"),
        (["data.source.tiers=[words1,words2]"], "grpo-words1_words2-seed1"),
        (["+method.control=shuffled", "method.control=null", "learner.steps=5"], "grpo-shuffled-controlnull-seed1"),
    ],
)
def test_a_run_is_called_by_what_was_typed(overrides: list[str], name: str) -> None:
    silent = [
        "resume=auto",
        "tracking.samples=3",
        "rollout.url=[http://127.0.0.1:1]",
        "output_dir='a/b'",
        "sync=checkpoint",
    ]
    known = [text for text in overrides if "control" not in text]
    cfg = settings(*known, *silent)
    assert named(cfg, [*overrides, *silent], "table1").tracking.name == name
    assert named(cfg, overrides, "table1").tracking.group == "table1"


def test_what_is_typed_stays() -> None:
    cfg = settings("tracking.name=mine", "tracking.group=ours")
    found = named(cfg, ["tracking.name=mine"], "table1").tracking
    assert (found.name, found.group) == ("mine", "ours")
    long = named(settings("seed=12"), ["learner.x=" + "9" * 300], "").tracking.name
    assert long is not None
    assert (len(long), long[-7:]) == (128, "-seed12")
