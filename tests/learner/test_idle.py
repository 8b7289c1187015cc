"""Completions without a gradient: which of them are scored, by hand, and what they stand for in a real step."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oar.learner.distributed import ALONE
from oar.learner.idle import stands_for
from oar.learner.samples import sample_rows
from tests.learner.on_ranks import config, learner_of, start_model


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


def test_by_hand() -> None:
    idle = torch.tensor([False] * 4 + [True] * 4 + [True, False, False, True])
    found = stands_for(idle, 4, seed=3).view(3, 4)
    assert found[0].tolist() == [1] * 4
    assert sorted(found[1].tolist()) == [0, 0, 0, 4]
    assert found[2, 1:3].tolist() == [1, 1]
    assert sorted(found[2, [0, 3]].tolist()) == [0, 2]


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 2**31))
def test_they_stand_for_all_of_their_group(idle: list[bool], seed: int) -> None:
    found = stands_for(torch.tensor(idle), 4, seed)
    assert found.view(3, 4).sum(dim=1).tolist() == [4, 4, 4]
    assert (found > 0).view(3, 4).any(dim=1).all()


def test_each_is_drawn_as_often_as_the_others() -> None:
    drawn = sum((stands_for(torch.ones(4, dtype=torch.bool), 4, seed) > 0).float() for seed in range(400))
    assert all(70 < count < 130 for count in drawn.tolist())


def test_a_step_scores_one_of_a_group_without_advantage(start: Path) -> None:
    """Whatever is drawn, the entropy is the mean over tokens where each group without advantage counts as its one completion."""
    learner = learner_of(config(), start, ALONE)
    report = learner.training_step()
    silent = report.advantages == 0
    assert silent[:4].all(), "the first group's completions are all alike"
    assert report.scored[:4].sum() == 1
    assert (report.scored | silent).all()
    assert (report.credited.old_logprobs[~report.scored] == 0).all()
    everything = learner_of(config(), start, ALONE)
    everything.counts = lambda data, credit: torch.ones(24)  # type: ignore[method-assign]
    whole = everything.training_step()
    for name, weight in learner.model.state_dict().items():
        assert torch.equal(weight, everything.model.state_dict()[name]), name
    torch.testing.assert_close(report.credited.entropy[report.scored], whole.credited.entropy[report.scored])
    groups = silent.view(-1, 4).all(dim=1)
    expected, tokens = 0.0, 0.0
    for group in range(6):
        rows = range(4 * group, 4 * group + 4)
        chosen = [row for row in rows if report.scored[row]]
        for row in chosen:
            mask = report.graded.batch.completion_mask[row]
            stands = 4 if groups[group] else 1
            expected += stands * float(whole.credited.entropy[row][mask].sum())
            tokens += stands * int(mask.sum())
    assert report.metrics["train/entropy"] == pytest.approx(expected / tokens, rel=1e-5)
    kept = [row["row"] for row in sample_rows(learner.task, report, 24)]
    assert sorted(kept) == report.scored.nonzero()[:, 0].tolist()


def test_a_method_that_compares_has_them_all(start: Path) -> None:
    shear = ("method=shear", "method.estimator.window=8", "method.estimator.stride=4")
    assert learner_of(config(*shear), start, ALONE).training_step().scored.all()
    two = learner_of(config("learner.updates_per_rollout=2"), start, ALONE).training_step()
    assert not two.scored.all()
    assert (two.scored | (two.advantages == 0)).all()
