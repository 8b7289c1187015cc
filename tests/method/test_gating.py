"""Bi-level gating: hand-computed numbers, an independent naive version, and what must always hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oar.common.errors import DataError
from oar.config import GatingConfig
from oar.method.gating import bilevel_weights, make_gate, threshold_importance, weight_metrics

PAPER = {"tau": 0.4, "beta": 2.0, "floor": 0.1, "threshold": "quantile"}


def naive_weights(importance, *, tau, beta, floor, threshold, suppress=True, boost=True):
    """docs/METHOD.md §5 for the reasoning tokens of one completion, a token at a time in numpy."""
    s = np.log1p(np.asarray(importance, dtype=np.float64))
    if len(s) == 0 or s.max() == s.min():
        return np.ones(len(s))
    s = (s - s.min()) / (s.max() - s.min())
    level = np.quantile(s, tau) if threshold == "quantile" else tau
    w = np.ones(len(s))
    for t, value in enumerate(s):
        if value < level:
            w[t] = max(value / level, floor) if suppress else 1
        elif boost and level < 1:
            w[t] = 1 + beta * (value - level) / (1 - level)
    return w * len(w) / w.sum()


def test_hand_computed():
    # importance e^s - 1 with s = 0, .25, .5, .75, 1: the 0.4-quantile of s is 0.4 exactly.
    importance = torch.expm1(torch.tensor([[0.0, 0.25, 0.5, 0.75, 1.0, 0.0]]))
    mask = torch.tensor([[True] * 5 + [False]])
    weights = bilevel_weights(importance, mask, **PAPER)
    raw = torch.tensor([0.1, 0.25 / 0.4, 1 + 2 * 0.1 / 0.6, 1 + 2 * 0.35 / 0.6, 3.0])
    torch.testing.assert_close(weights[0, :5], raw * 5 / raw.sum())
    assert weights[0, 5] == 1


def test_variants_keep_one_side_at_one_before_rescaling():
    importance, mask = torch.expm1(torch.tensor([[0.0, 0.25, 0.5, 0.75, 1.0]])), torch.ones(1, 5, dtype=torch.bool)
    boost_only = bilevel_weights(importance, mask, **PAPER, suppress=False)[0]
    suppress_only = bilevel_weights(importance, mask, **PAPER, boost=False)[0]
    neither = bilevel_weights(importance, mask, **PAPER, suppress=False, boost=False)[0]
    assert boost_only[0] == boost_only[1] < boost_only[2]
    assert suppress_only[2] == suppress_only[4] > suppress_only[1] > suppress_only[0]
    assert torch.equal(neither, torch.ones(5))


importances = st.lists(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=0, max_size=12), min_size=1, max_size=4
)


@settings(max_examples=200, deadline=None)
@given(
    importances,
    st.floats(0, 1),
    st.floats(0, 8),
    st.floats(0.01, 1),
    st.sampled_from(["quantile", "absolute"]),
    st.booleans(),
    st.booleans(),
)
def test_equals_naive_and_keeps_the_mass(rows, tau, beta, floor, threshold, suppress, boost):
    width = max(1, *(len(row) for row in rows))
    importance, mask = torch.full((len(rows), width), 7.0), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        importance[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    options = {"tau": tau, "beta": beta, "floor": floor, "threshold": threshold, "suppress": suppress, "boost": boost}
    weights = bilevel_weights(importance, mask, **options)
    assert torch.isfinite(weights).all()
    assert (weights > 0).all()  # the sign of an advantage is kept
    assert (weights[~mask] == 1).all()
    for i, row in enumerate(rows):
        assert float(weights[i][mask[i]].sum()) == pytest.approx(len(row), rel=1e-5)
        scores = np.log1p(np.asarray(row, dtype=np.float32))
        gaps = np.diff(np.unique(scores))
        if len(gaps) and np.ptp(scores) > 0.1 and gaps.min() > 1e-3 * np.ptp(scores):
            # float32 may put a token on the other side of the threshold only where it lies right on it
            naive = naive_weights(np.asarray(row, dtype=np.float32), **options)
            s = (scores - scores.min()) / (scores.max() - scores.min())
            level = np.quantile(s, tau) if threshold == "quantile" else tau
            if np.abs(s - level).min() > 1e-5 and 1e-3 < level < 1 - 1e-3:
                np.testing.assert_allclose(weights[i][mask[i]].numpy(), naive, rtol=2e-3)


def naive_drift(rows, *, tau, beta, floor):
    """The released loop (docs/METHOD.md §10), in numpy: one threshold variable for all samples, overwritten in each.

    For each row the threshold and the weights.
    """
    threshold, out = tau, []
    for importance in rows:
        s = np.log1p(np.asarray(importance, dtype=np.float64))
        if len(s) == 0:
            out.append((threshold, s))
            continue
        s = (s - s.min()) / (s.max() - s.min() if s.max() > s.min() else 1.0)
        threshold = np.quantile(s, threshold)
        w = np.ones(len(s))
        low = s < threshold
        w[low] = np.maximum(s[low] / threshold, floor)
        w[~low] = 1 + beta * (s[~low] - threshold) / (1 - threshold if threshold < 1 else 1.0)
        out.append((threshold, w * len(w) / w.sum()))
    return out


DRIFT = {"beta": 2.0, "floor": 0.1, "threshold": "released_drift"}


def test_released_drift_by_hand():
    """s = 0, .25, .5, .75, 1 in each row, so that a quantile is its own level, but the second row is skewed."""
    even, skewed = [0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.1, 0.2, 1.0]
    importance, mask = torch.expm1(torch.tensor([even, skewed, even])), torch.ones(3, 5, dtype=torch.bool)
    weights = bilevel_weights(importance, mask, tau=0.5, **DRIFT)
    raw = torch.tensor(
        [
            [0.1, 0.5, 1.0, 1 + 2 * 0.25 / 0.5, 3.0],  # level 0.5, tau' 0.5
            [0.1, 0.1, 1.0, 1 + 2 * 0.1 / 0.9, 3.0],  # level 0.5, tau' 0.1
            [0.1, 1 + 2 * 0.15 / 0.9, 1 + 2 * 0.4 / 0.9, 1 + 2 * 0.65 / 0.9, 3.0],  # level 0.1, tau' 0.1
        ]
    )
    torch.testing.assert_close(weights, raw * 5 / raw.sum(dim=1, keepdim=True))
    # the first row is what the paper's gate gives it, the third is not
    fixed = bilevel_weights(importance, mask, tau=0.5, beta=2.0, floor=0.1, threshold="quantile")
    assert torch.equal(weights[:2], fixed[:2])
    assert not torch.allclose(weights[2], fixed[2])


def test_released_drift_and_rows_of_weight_one():
    even = torch.expm1(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    alone = bilevel_weights(even[None], torch.ones(1, 5, dtype=torch.bool), tau=0.5, **DRIFT)[0]
    # without reasoning tokens: passed over, whatever stands there
    mask = torch.tensor([[False] * 5, [True] * 5])
    weights = bilevel_weights(torch.stack([torch.full((5,), 9.0), even]), mask, tau=0.5, **DRIFT)
    assert torch.equal(weights, torch.stack([torch.ones(5), alone]))
    # all equal: threshold 0 there and ever after, so nothing is suppressed
    weights = bilevel_weights(torch.stack([torch.full((5,), 9.0), even, even]), mask[[1, 1, 1]], tau=0.5, **DRIFT)
    boosted = 1 + 2 * torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    torch.testing.assert_close(weights, torch.stack([torch.ones(5), *[boosted * 5 / boosted.sum()] * 2]))


@settings(max_examples=300)
@given(
    st.lists(st.lists(st.floats(0, 10), max_size=6), min_size=1, max_size=4),
    st.floats(0.05, 0.95),
    st.floats(0, 8),
    st.floats(0.01, 1),
)
def test_released_drift_equals_the_released_loop(rows, tau, beta, floor):
    importance, mask = torch.full((len(rows), 6), 7.0), torch.zeros(len(rows), 6, dtype=torch.bool)
    for i, row in enumerate(rows):
        importance[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    weights = bilevel_weights(importance, mask, tau=tau, beta=beta, floor=floor, threshold="released_drift")
    for i, (threshold, expected) in enumerate(naive_drift(rows, tau=tau, beta=beta, floor=floor)):
        found = weights[i][mask[i]].numpy()
        assert found.sum() == pytest.approx(len(expected), rel=1e-5)
        # At a threshold next to 0 or 1 rounding decides on which side a token is, and the later rows inherit it.
        spread = np.ptp(np.log1p(rows[i])) if rows[i] else 1.0
        if not 0.02 < threshold < 0.98 or 0 < spread < 1e-2:
            break
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1, 1, 1), (3, 3), (2, 4)])
def test_released_drift_goes_on_from_one_micro_batch_to_the_next(cuts):
    """However a step is cut into micro-batches, one completion in each included, it is the loop over all of them."""
    importance = torch.rand(6, 20, generator=torch.Generator().manual_seed(0)) ** 4
    mask = torch.ones(6, 20, dtype=torch.bool)
    mask[2] = False  # a completion without reasoning is passed over
    cfg = GatingConfig("released_drift", suppress=True, boost=True, tau=0.4, **DRIFT)
    whole = bilevel_weights(importance, mask, tau=0.4, **DRIFT)
    gate = make_gate(**cfg.options())
    parts = [gate(*part) for part in zip(importance.split(cuts), mask.split(cuts), strict=True)]
    assert torch.equal(torch.cat(parts), whole)
    plain = bilevel_weights(importance, mask, tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
    assert not torch.allclose(torch.cat(parts), plain)
    assert torch.equal(make_gate(**cfg.options())(importance, mask), whole)  # the next step starts anew


def test_uniform_importance_is_one_to_the_bit():
    mask = torch.rand(8, 20, generator=torch.Generator().manual_seed(0)) > 0.3
    for value in (0.0, 1.0, 0.3, 1e-7):
        weights = bilevel_weights(torch.full((8, 20), value), mask, **PAPER)
        assert torch.equal(weights, torch.ones(8, 20))


def test_what_lies_outside_the_mask_does_not_matter():
    mask = torch.tensor([[True, True, True, False, False]])
    one = torch.tensor([[0.1, 0.5, 2.0, 0.0, 0.0]])
    other = torch.tensor([[0.1, 0.5, 2.0, 99.0, float("nan")]])
    assert torch.equal(bilevel_weights(one, mask, **PAPER), bilevel_weights(other, mask, **PAPER))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_bad_importance_names_the_row(bad):
    importance = torch.ones(3, 4)
    importance[1, 2] = bad
    with pytest.raises(DataError, match="row 1"):
        bilevel_weights(importance, torch.ones(3, 4, dtype=torch.bool), **PAPER)


def test_weight_metrics_by_hand():
    weights = torch.tensor([[0.5, 1.5, 1.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, True, False], [False] * 4])
    metrics = weight_metrics(weights, mask)
    assert metrics == {
        "ess_ratio": pytest.approx(9 / (3 * 3.5)),
        "suppressed_share": pytest.approx(1 / 3),  # a weight of 1 is neither
        "boosted_share": pytest.approx(1 / 3),
        "max": 1.5,
        "mass": 1.0,
    }
    assert weight_metrics(weights[:0], mask[:0])["ess_ratio"] == 1.0


def test_threshold_in_units_of_importance():
    # log1p(importance) = 1 ... 2, so s = 0, .25, .5, .75, 1, whose 0.4-quantile is 0.4: at log1p(importance) = 1.4.
    importance = torch.expm1(torch.tensor([[1.0, 1.25, 1.5, 1.75, 2.0, 9.0], [3.0] * 6, [0.0] * 6]))
    mask = torch.tensor([[True] * 5 + [False], [True] * 6, [False] * 6])
    found = threshold_importance(importance, mask, tau=0.4, threshold="quantile")
    assert found[0] == pytest.approx(math.expm1(1.4))
    assert found[1:].isnan().all()  # all equal; no reasoning
    absolute = threshold_importance(importance, mask, tau=0.7, threshold="absolute")
    assert absolute[0] == pytest.approx(math.expm1(1.7))
    assert threshold_importance(torch.zeros(2, 0), torch.zeros(2, 0), tau=0.4, threshold="quantile").isnan().all()


@given(
    importance=st.lists(st.floats(0, 100), min_size=2, max_size=12).filter(lambda row: np.ptp(np.log1p(row)) > 1e-3),
    tau=st.floats(0.05, 0.9),
    threshold=st.sampled_from(["quantile", "absolute"]),
)
def test_the_gate_boosts_from_the_threshold_on(importance, tau, threshold):
    row = torch.tensor([importance])
    mask = torch.ones_like(row, dtype=torch.bool)
    level = threshold_importance(row, mask, tau=tau, threshold=threshold)
    gate = {"tau": tau, "floor": 0.1, "threshold": threshold, "boost": False}
    raw = bilevel_weights(row, mask, beta=0.0, **gate)
    clearly_below, clearly_above = row < level * (1 - 1e-3) - 1e-4, row > level * (1 + 1e-3) + 1e-4
    top = raw.max()  # what is not suppressed, rescaled
    assert (raw[clearly_below] < top).all()
    assert torch.equal(raw[clearly_above], top.expand(int(clearly_above.sum())))
