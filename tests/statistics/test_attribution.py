"""Metrics of a token signal against ground truth: by hand, against naive counts, and what ties and scales may not do."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.common.errors import DataError
from oar.statistics.attribution import (
    auc,
    calibration_counts,
    calibration_error,
    calibration_shares,
    gate_scores,
    mid_ranks,
    recall_at,
    recall_at_top_fifth,
    recall_at_truth,
    spearman,
    top_fifth,
    top_fifth_overlap,
    top_k_probability,
)

# Few distinct values, so that ties are the rule.
levels = st.integers(0, 5)
marked_signals = st.lists(st.tuples(levels, st.booleans()), min_size=2, max_size=30).filter(
    lambda tokens: len({mark for _, mark in tokens}) == 2
)
METRICS = {"auc": auc, "truth": recall_at_truth, "fifth": recall_at_top_fifth}


def unzip(tokens):
    values, marks = zip(*tokens, strict=True)
    return np.array(values, dtype=float), np.array(marks)


def test_by_hand():
    signal, truth = [5.0, 1.0, 4.0, 2.0, 3.0, 0.0], [1, 0, 0, 1, 1, 0]
    assert recall_at(signal, truth, 1) == pytest.approx(1 / 3)
    assert recall_at(signal, truth, 2) == pytest.approx(1 / 3)  # 5 and 4, of which 5 matters
    assert recall_at_truth(signal, truth) == pytest.approx(2 / 3)
    assert recall_at_top_fifth(signal, truth) == pytest.approx(1 / 3)  # 6 tokens: 2
    assert auc(signal, truth) == pytest.approx(7 / 9)  # 5 beats three, 3 beats two, 2 beats two
    assert auc(signal, [0, 0, 1, 0, 0, 0]) == pytest.approx(4 / 5)  # the percentile of one token
    assert [top_fifth(length) for length in (1, 5, 6, 10, 11)] == [1, 1, 2, 2, 3]


def test_ties_by_hand():
    signal = [2.0, 1.0, 1.0, 1.0, 0.0]
    assert mid_ranks(signal).tolist() == [5, 3, 3, 3, 1]
    assert top_k_probability(signal, 2).tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 0])
    assert top_k_probability(signal, 0).tolist() == [0] * 5
    assert top_k_probability(signal, 9).tolist() == [1] * 5
    assert recall_at(signal, [0, 1, 1, 0, 0], 2) == pytest.approx(1 / 3)
    assert auc(signal, [0, 0, 1, 0, 1]) == pytest.approx((0 + 0.5 + 0.5 + 0 + 0 + 0) / 6)


@given(st.lists(levels, min_size=1, max_size=6), st.integers(0, 6))
def test_top_k_is_the_mean_over_every_order_of_the_tokens(values, k):
    """The naive one: put the tokens into each order, sort stably, count who is among the first k."""
    counts, orders = np.zeros(len(values)), list(permutations(range(len(values))))
    for order in orders:
        for token in sorted(order, key=lambda token: -values[token])[:k]:
            counts[token] += 1
    assert top_k_probability(values, k) == pytest.approx(counts / len(orders))


@given(marked_signals)
def test_auc_is_the_count_over_all_pairs(tokens):
    signal, truth = unzip(tokens)
    pairs = [(a, b) for a, good in zip(signal, truth, strict=True) if good for b in signal[~truth]]
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    assert auc(signal, truth) == pytest.approx(wins / len(pairs))


@given(marked_signals)
def test_only_the_order_counts(tokens):
    signal, truth = unzip(tokens)
    for name, metric in METRICS.items():
        assert metric(np.exp(3 * signal) - 7, truth) == pytest.approx(metric(signal, truth)), name
    assert auc(-signal, truth) == pytest.approx(1 - auc(signal, truth))
    order = np.random.default_rng(0).permutation(len(signal))
    for name, metric in METRICS.items():
        assert metric(signal[order], truth[order]) == pytest.approx(metric(signal, truth)), name


@given(marked_signals)
def test_perfect_and_constant_signals(tokens):
    signal, truth = unzip(tokens)
    share, fifth = truth.mean(), top_fifth(len(truth))
    perfect, constant = truth.astype(float), np.full(len(truth), 0.3)
    assert auc(perfect, truth) == recall_at_truth(perfect, truth) == 1
    assert recall_at_top_fifth(perfect, truth) == pytest.approx(min(1, fifth / truth.sum()))
    assert auc(constant, truth) == pytest.approx(0.5)
    assert recall_at_truth(constant, truth) == pytest.approx(share)
    assert recall_at_top_fifth(constant, truth) == pytest.approx(fifth / len(truth))
    assert auc(1 - perfect, truth) == 0
    assert top_k_probability(signal, fifth).sum() == pytest.approx(fifth)


@given(marked_signals)
def test_marks_that_say_nothing_give_chance_on_average(tokens):
    """Over all rotations of the marks each token matters equally often, so the mean is chance whatever the signal."""
    signal, truth = unzip(tokens)
    rotations = [np.roll(truth, shift) for shift in range(len(truth))]
    assert np.mean([recall_at_truth(signal, turned) for turned in rotations]) == pytest.approx(truth.mean())
    assert np.mean([auc(signal, turned) for turned in rotations]) == pytest.approx(0.5)


def test_what_is_not_defined_is_nan_and_what_cannot_be_is_refused():
    assert np.isnan(auc([1.0, 2.0], [1, 1]))
    assert np.isnan(auc([1.0, 2.0], [0, 0]))
    assert np.isnan(recall_at_truth([1.0, 2.0], [0, 0]))
    assert np.isnan(spearman([1.0, 2.0], [3.0, 3.0]))
    for bad in ([], [1.0, np.nan], [[1.0]]):
        with pytest.raises(DataError, match="finite numbers"):
            mid_ranks(bad)
    with pytest.raises(DataError, match="one value for each token"):
        auc([1.0, 2.0, 3.0], [1, 0])
    with pytest.raises(DataError, match="one value for each token"):
        spearman([1.0, 2.0, 3.0], [1.0, 0.0])


def test_agreement_with_a_reference_by_hand():
    assert spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)  # 1 - 6 * 2 / (4 * 15)
    assert spearman([1, 2, 3], [9, 5, 1]) == pytest.approx(-1)
    assert spearman([2, 2, 2], [1, 2, 3]) == 0
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(1.5 / np.sqrt(1.5 * 2))  # ranks 1.5, 1.5, 3
    assert top_fifth_overlap([3, 2, 1, 0, 0, 0], [3, 0, 2, 0, 0, 0]) == pytest.approx(0.5)
    assert top_fifth_overlap([1] * 10, range(10)) == pytest.approx(0.2)  # chance


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=30, unique=True))
def test_a_signal_agrees_with_itself(values):
    assert spearman(values, values) == pytest.approx(1)
    assert top_fifth_overlap(values, values) == pytest.approx(1)


def test_calibration_by_hand():
    scores, truth = [0.0, 0.04, 0.5, 0.55, 1.0], [0, 1, 1, 1, 0]
    counts = calibration_counts(scores, truth, bins=10)
    assert counts[0].tolist() == [2, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert counts[1].tolist() == [1, 0, 0, 0, 0, 2, 0, 0, 0, 0]
    shares = calibration_shares(counts)
    assert shares[[0, 5, 9]].tolist() == [0.5, 1, 0]
    assert np.isnan(shares[1])
    # |0.02 - 0.5| of two tokens, |0.525 - 1| of two, |1 - 0| of one
    assert calibration_error(counts) == pytest.approx((2 * 0.48 + 2 * 0.475 + 1) / 5)
    both = np.stack([counts, 2 * counts])
    assert calibration_error(both) == pytest.approx([calibration_error(counts)] * 2)
    assert calibration_shares(both).shape == (2, 10)


def test_a_signal_that_is_the_truth_is_calibrated():
    truth = np.array([1, 0, 0, 1, 0])
    scores = gate_scores(truth)
    assert scores is not None
    assert calibration_error(calibration_counts(scores, truth)) == 0
    assert calibration_error(calibration_counts(1 - scores, truth)) == 1


def test_gate_scores_are_the_gates():
    assert gate_scores([0.0, np.e - 1, np.e**2 - 1]) == pytest.approx([0, 0.5, 1])
    assert gate_scores([np.e - 1, np.e**2 - 1, np.e**3 - 1]) == pytest.approx([0, 0.5, 1])
    assert gate_scores([3.0, 3.0]) is None
