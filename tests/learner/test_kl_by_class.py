"""A KL term whose coefficients follow the classes of a run's problems."""

from pathlib import Path

import pytest

from oar.common.errors import ConfigError
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from tests.learner.on_ranks import config, learner_of, start_model


@pytest.mark.parametrize("overlong", ["keep", "mask"])
def test_a_kl_by_class_follows_each_tier_alone(tmp_path: Path, overlong: str) -> None:
    cut = ("rollout.max_new_tokens=20", f"learner.overlong={overlong}")
    learner = learner_of(config("method=crpo", "method.auxiliary.horizon=5", *cut), start_model(tmp_path), ALONE)
    report = learner.training_step()
    assert report.graded.truncated.sum() > 1
    tiers = {f"{problem.benchmark} {problem.level}" for problem in report.graded.problems}
    assert len(tiers) > 1
    # Still the starting model, whose KL of 0 is below every aim: by the code's sign the coefficients rise.
    of_tier = {tier: sum(f"{one.benchmark} {one.level}" == tier for one in report.graded.problems) for tier in tiers}
    for tier, count in of_tier.items():
        assert report.metrics[f"kl_coefficient/{tier}"] == pytest.approx(0.01 * (1 + 0.2 * count / 5))
    with pytest.raises(ConfigError, match=r"learner\.ranks must be 1 where a KL term knows classes"):
        Method.built(config("method=crpo", "learner.ranks=2"))
