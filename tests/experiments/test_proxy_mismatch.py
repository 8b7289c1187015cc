"""Importance against process supervision, by hand on three completions of two problems."""

import numpy as np
import pandas as pd
import pytest

from experiments.signals.examined import gap, pooled_mean
from experiments.signals.proxy_mismatch import completion_mismatch, proxy_mismatch
from tests.experiments.made import C, O, W, examined

FOUND = examined(
    {
        "good": [[0, 4, 4, 0], [0, 1, 1, 3, 3], [0, 1]],
        "flat": [[1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1]],
        "error": [[0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0]],
    },
    weights={
        "good": [[0, 2, 2, 0], [0, 0.5, 1, 2, 1.5], [0.5, 1.5]],
        "flat": [[1] * 4, [1] * 5, [1] * 2],
        "error": [[0, 2, 2, 0], [0, 0, 5, 0, 0], [1, 1]],
    },
    problems=["a", "a", "b"],
    correct=[True, False, False],
    roles=[[W, C, O, W], [W, C, O, C, O], [W, C]],
    errors=[None, 2, None],
    first_errors=["nowhere", "operator", "rest"],
)


def values(split: str, signal: str) -> dict[str, float]:
    table = proxy_mismatch(FOUND, pairs=[("good", "flat")], seed=0)
    rows = table[(table["split"] == split) & (table["signal"] == signal)]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def test_one_wrong_completion_by_hand() -> None:
    causal, error = np.array([0, 1, 1, 1, 1], bool), np.array([0, 0, 1, 0, 0], bool)
    found = completion_mismatch(
        np.array([0.0, 1, 1, 3, 3]), np.array([0.0, 0.5, 1, 2, 1.5]), causal, error, correct=False
    )
    # Ranks 1, 2.5, 2.5, 4.5, 4.5 against 1, 3.5, 3.5, 3.5, 3.5, both of mean 3.
    assert found["causal_spearman"] == pytest.approx(5 / np.sqrt(9 * 5))
    assert found["supervision_auc"] == 1.5 / 4  # above one, equal to another, below two
    assert found["causal_mass"] == 1
    assert found["nats"] == 8
    assert found["causal_weight"] == 1.25
    assert (found["before_weight"], found["error_weight"], found["after_weight"]) == (0.5, 1, 1.75)


def test_right_completions_have_no_error_and_are_supervised_by_their_causal_tokens() -> None:
    causal = np.array([0, 1, 1, 0], bool)
    found = completion_mismatch(
        np.array([0.0, 4, 4, 0]), np.array([0.0, 2, 2, 0]), causal, causal & False, correct=True
    )
    assert found["supervision_auc"] == found["causal_spearman"] == pytest.approx(1)
    assert all(np.isnan(found[name]) for name in ("error_weight", "before_weight", "after_weight"))
    nothing = completion_mismatch(np.zeros(4), np.ones(4), causal, causal & False, correct=True)
    assert np.isnan(nothing["causal_mass"])


def test_the_table_by_hand() -> None:
    right, wrong, gaps = (values(split, "good") for split in ("correct", "wrong", "correct - wrong"))
    assert right["causal_mass"] == 1
    assert wrong["nats"] == (8 + 1) / 2
    assert gaps["nats"] == 8 - 4.5
    assert wrong["error_weight"] == 1  # of the one whose error is located
    assert "error_weight" not in right
    assert "error_weight" not in gaps
    assert values("wrong", "error")["supervision_auc"] == 1
    assert values("wrong", "flat")["causal_mass"] == pytest.approx((4 / 5 + 1 / 2) / 2)
    assert values("wrong", "flat")["supervision_auc"] == 0.5
    assert values("correct", "good - flat")["causal_weight"] == 1


def test_a_gap_resamples_problems_with_both_their_sides() -> None:
    """Every problem has the same gap of 2 whatever its level: there is nothing uncertain about it."""
    scores = np.array([5.0, 3, 1, -1])
    first, problems = np.array([True, False, True, False]), np.array(["a", "a", "b", "b"])
    assert gap(scores, first, problems, seed=0) == pytest.approx((2, 2, 2))
    apart = gap(scores, first, np.array(["a", "b", "c", "d"]), seed=0)
    assert apart[0] == 2
    assert apart[1] < 2 < apart[2]


def test_a_pooled_mean_weighs_tokens() -> None:
    found = pooled_mean(np.array([6.0, 1]), np.array([3.0, 1]), np.array(["a", "b"]), seed=0)
    assert found == pytest.approx((7 / 4, 1, 2))


def test_the_table_has_no_gaps() -> None:
    table: pd.DataFrame = proxy_mismatch(FOUND, pairs=[], seed=0)
    assert not table.isna().any().any()
    assert not table.duplicated(["split", "signal", "metric"]).any()
