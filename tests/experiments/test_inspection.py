"""Signals beside each other: what orders tokens, and how far two orders agree."""

import numpy as np
import pandas as pd
import pytest

from experiments.inspect_credit.token_signal import TokenSignal, rank_agreement
from oar.common.errors import DataError


def signal(name, kind, values, **more):
    return TokenSignal(name, "here", kind, "", values, **more)


def test_agreement_is_that_of_pandas():
    rng = np.random.default_rng(3)
    counts = [2, 7, 30]
    # A floor makes ties among weights; the importance behind them has none and is what is ranked.
    importance = [rng.exponential(size=count).tolist() for count in counts]
    weights = [np.maximum(row, 0.5).tolist() for row in importance]
    entropy = [rng.integers(0, 4, size=count + 3).tolist() for count in counts]  # ties, and tokens behind the reasoning
    entropy[0][:2] = [1, 2]
    signals = [
        signal("oar_p", "weight", weights, importance=importance, thresholds=[None] * 3),
        signal("advantage", "advantage", entropy),
        signal("entropy", "amount", entropy),
    ]
    agreement = rank_agreement(signals, counts)
    assert list(agreement) == [(0, 2)]  # an advantage has no order of its own
    for row, count in enumerate(counts):
        table = pd.DataFrame({"one": importance[row], "other": entropy[row][:count]})
        assert agreement[0, 2][row] == pytest.approx(table.corr(method="spearman").loc["one", "other"])


def test_what_has_no_order_agrees_with_nothing():
    flat = signal("grpo", "weight", [[1, 1, 1]] * 3, importance=[[1, 1, 1], [], [1, 2, 3]], thresholds=[None] * 3)
    varied = signal("entropy", "amount", [[1, 2, 3], [1, 2, 3], [2, 2, 2]])
    for order in ([flat, varied], [varied, flat]):
        assert rank_agreement(order, [3, 3, 3]) == {(0, 1): [None, None, None]}


def test_a_weight_without_its_importance_is_refused():
    with pytest.raises(DataError, match="importance and a threshold for each completion"):
        signal("oar_p", "weight", [[1.0]], importance=[[1.0]])
