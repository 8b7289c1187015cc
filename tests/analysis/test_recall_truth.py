"""The table of oracle recall, by hand on three completions of two problems."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from oar.analysis.signals.recall import COLUMNS, Truth, recall_table
from oar.common.errors import DataError

TRUTH = Truth(
    problems=["a", "a", "b"],
    correct=np.array([True, False, False]),
    causal=[np.array([1, 1, 0, 0], bool), np.array([1, 0, 0], bool), np.array([1, 1], bool)],
    error=[np.zeros(4, bool), np.array([0, 0, 1], bool), np.zeros(2, bool)],  # the last error is not located
)
SIGNALS = {
    "good": [np.array([4.0, 3, 2, 1]), np.array([3.0, 2, 1]), np.array([1.0, 0])],
    "bad": [np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 3]), np.array([0.0, 1])],
    "flat": [np.ones(4), np.ones(3), np.ones(2)],
}


def table(**changes: object) -> pd.DataFrame:
    options = {"reference": "good", "pairs": [("good", "bad")], "k": [1], "seed": 0} | changes
    return recall_table(SIGNALS, TRUTH, **options)


def rows(split: str, signal: str, found: pd.DataFrame | None = None) -> dict[str, tuple[float, int]]:
    """{metric: (value, n)} of a split and signal."""
    found = table() if found is None else found
    chosen = found[(found["split"] == split) & (found["signal"] == signal)]
    return {row.metric: (pytest.approx(row.value), row.n) for row in chosen.itertuples()}


def test_columns_and_order() -> None:
    found = table()
    assert list(found.columns) == COLUMNS
    assert list(found["signal"].unique()) == ["good", "bad", "flat", "good - bad"]
    assert not found.isna().any().any()
    assert not found.duplicated(["split", "signal", "metric"]).any()


def test_values_by_hand() -> None:
    good, bad = rows("all", "good"), rows("all", "bad")
    assert good["causal_auc"] == (1, 2)  # the third completion has no token that is not causal
    assert bad["causal_auc"] == (0, 2)
    assert good["causal_recall"] == (1, 3)
    assert bad["causal_recall"] == (1 / 3, 3)  # 0, 0 and, where all are causal, 1
    assert good["causal_recall_top_fifth"] == ((1 / 2 + 1 + 1 / 2) / 3, 3)
    assert good["causal_recall@1"] == good["causal_recall_top_fifth"]
    assert (good["spearman"], bad["spearman"]) == ((1, 3), (-1, 3))
    assert bad["top_fifth_overlap"] == (0, 3)
    assert rows("correct", "bad")["causal_recall"] == (0, 1)
    assert rows("wrong", "bad")["causal_recall"] == (1 / 2, 2)


def test_a_constant_signal_is_chance() -> None:
    flat = rows("all", "flat")
    assert flat["causal_auc"] == (0.5, 2)
    assert flat["causal_recall"] == ((1 / 2 + 1 / 3 + 1) / 3, 3)
    assert "calibration_error" not in flat
    assert rows("wrong", "flat")["error_percentile"] == (0.5, 1)


def test_errors_are_asked_of_wrong_completions_whose_error_is_located() -> None:
    assert rows("wrong", "good")["error_top_fifth"] == (0, 1)
    assert rows("wrong", "bad")["error_top_fifth"] == (1, 1)
    assert rows("wrong", "bad")["error_percentile"] == (1, 1)
    for split in ("all", "correct"):
        assert not [metric for metric in rows(split, "good") if metric.startswith("error")]


def test_pairs_are_differences_of_the_same_completions() -> None:
    found = rows("all", "good - bad")
    assert found["causal_auc"] == (1, 2)
    assert found["causal_recall"] == (2 / 3, 3)
    assert not [metric for metric in found if metric.startswith("cali")]
    both = table(pairs=[("good", "good")])
    same = both[both["signal"] == "good - good"]
    assert (same[["value", "low", "high"]] == 0).all().all()


@pytest.mark.parametrize(("split", "tokens"), [("all", 9), ("correct", 4), ("wrong", 5)])
def test_calibration_counts_tokens(split: str, tokens: int) -> None:
    found = rows(split, "good")
    assert sum(n for metric, (_, n) in found.items() if metric.startswith("causal_share")) == tokens


def test_calibration_by_hand() -> None:
    good = rows("all", "good")
    shares = {metric: value for metric, value in good.items() if metric.startswith("causal_share")}
    assert shares["causal_share_0.0"] == (1 / 3, 3)  # the least of each completion; one of them is causal
    assert shares["causal_share_0.9"] == (1, 3)
    assert good["calibration_error"][1] == 3


def test_the_calibrations_intervals_are_those_of_a_share() -> None:
    """A hundred problems of one completion; the larger token is causal in half of them: a standard error of 0.05."""
    causal = [np.array([False, row % 2 == 0]) for row in range(100)]
    truth = Truth([str(row) for row in range(100)], np.ones(100, bool), causal, [np.zeros(2, bool)] * 100)
    signals = {"one": [np.array([0.0, 1.0])] * 100}
    found = recall_table(signals, truth, reference="one", pairs=[], k=[1], seed=0)
    for metric, value, error in (("causal_share_0.9", 0.5, 0.05), ("calibration_error", 0.25, 0.025)):
        (row,) = found[(found["split"] == "all") & (found["metric"] == metric)].itertuples()
        assert (row.value, row.high - row.low) == (pytest.approx(value), pytest.approx(2 * 1.96 * error, rel=0.1))


def test_problems_are_resampled_not_completions() -> None:
    """All completions of one problem: there is nothing to resample, so the interval has no width."""
    one = Truth(["a"] * 3, TRUTH.correct, TRUTH.causal, TRUTH.error)
    found = recall_table(SIGNALS, one, reference="good", pairs=[], k=[1], seed=0)
    assert found["low"].to_numpy() == pytest.approx(found["value"].to_numpy())
    assert found["high"].to_numpy() == pytest.approx(found["value"].to_numpy())
    wide = table().set_index(["split", "signal", "metric"]).loc[("all", "bad", "causal_recall")]
    assert (wide["low"], wide["high"]) == (0, 1)


def test_facts() -> None:
    assert TRUTH.facts() == {
        "completions": 3,
        "problems": 2,
        "correct": 1,
        "errors_located": 1,
        "reasoning_tokens": 3,
        "causal_share": pytest.approx((1 / 2 + 1 / 3 + 1) / 3),
    }
    longer = replace(TRUTH, causal=[np.ones(9, bool), *TRUTH.causal[1:]])
    assert longer.facts()["reasoning_tokens"] == pytest.approx((9 + 3 + 2) / 3)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match="'best' must be one of the signals"):
        table(reference="best")
    with pytest.raises(DataError, match="'best' must be one of the signals"):
        table(pairs=[("good", "best")])
