import numpy as np
import pytest

from oar.errors import DataError
from oar.statistics import (
    bootstrap_interval,
    crossed_bootstrap,
    grouped_interval,
    macro_bootstrap_interval,
    mean_and_standard_error,
    resampled_sums,
    student_interval,
    student_quantile,
)


def test_standard_error_by_hand() -> None:
    mean, error = mean_and_standard_error([50.0, 52.0, 57.0])  # deviations -3, -1, 4: variance 26 / 2
    assert mean == pytest.approx(53.0)
    assert error == pytest.approx((13.0 / 3) ** 0.5)
    assert mean_and_standard_error([50.0]) == (50.0, None)


def test_bootstrap_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(400):
        low, high = bootstrap_interval(rng.binomial(1, 0.4, size=200), seed=trial, confidence=0.9, resamples=500)
        hits += low <= 0.4 <= high
    assert 0.86 <= hits / 400 <= 0.94  # 0.90 +- 2.7 standard errors


def test_problems_are_the_unit_of_uncertainty() -> None:
    per_problem = np.repeat([0.0, 1.0], 50)
    low, high = bootstrap_interval(per_problem, seed=1)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.05, rel=0.1)  # 0.5 / sqrt(100)
    assert bootstrap_interval(per_problem, seed=1) == (low, high)
    assert bootstrap_interval(np.ones(30), seed=1) == (1.0, 1.0)


def test_the_mean_over_benchmarks_weighs_them_equally() -> None:
    large, small = np.full(500, 20.0), np.full(30, 80.0)
    assert macro_bootstrap_interval([large, small], seed=0) == (50.0, 50.0)
    # Only the small one is uncertain: half its standard error, 50 / sqrt(30), survives in the mean of two.
    low, high = macro_bootstrap_interval([large, np.repeat([0.0, 100.0], 15)], seed=0)
    assert (high - low) / 2 == pytest.approx(1.96 * 50 / 30**0.5 / 2, rel=0.15)


def test_groups_are_resampled_whole() -> None:
    """Two groups that cancel within themselves: whole, their sum never moves; value by value it would."""
    values, groups = [1.0, -1.0, 5.0, -5.0], ["a", "a", "b", "b"]
    assert not resampled_sums(values, groups, seed=0).any()
    sums = resampled_sums(np.eye(2), ["a", "b"], seed=0, resamples=1000)
    assert set(map(tuple, sums)) == {(2.0, 0.0), (1.0, 1.0), (0.0, 2.0)}
    assert sums.mean(axis=0) == pytest.approx([1, 1], abs=0.1)


def test_equal_values_within_a_group_count_once() -> None:
    """Ten copies of each score say nothing new: the interval is that of the scores."""
    scores = np.repeat([0.0, 1.0], 50)
    low, high = grouped_interval(np.repeat(scores, 10), np.repeat(np.arange(100), 10), seed=1)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.05, rel=0.1)
    low, high = grouped_interval(np.repeat(scores, 10), np.arange(1000), seed=1)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.5 / 1000**0.5, rel=0.1)


def test_grouped_intervals_cover_the_true_mean_with_groups_of_unequal_size() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        sizes = rng.integers(1, 6, size=80)
        groups = np.repeat(np.arange(80), sizes)
        values = np.repeat(rng.normal(3, 1, size=80), sizes) + rng.normal(0, 0.3, size=len(groups))
        low, high = grouped_interval(values, groups, seed=trial, confidence=0.9, resamples=500)
        hits += low <= 3 <= high
    assert 0.84 <= hits / 300 <= 0.95


def test_values_without_a_group_are_refused() -> None:
    for values, groups in (([], []), ([1.0, 2.0], ["a"]), ([1.0, float("nan")], ["a", "b"])):
        with pytest.raises(DataError, match="must be finite"):
            resampled_sums(values, groups, seed=0)


@pytest.mark.parametrize("scores", [[], [1.0, float("nan")], [[1.0], [0.0]]])
def test_scores_that_are_none_or_not_numbers_are_refused(scores: list[float]) -> None:
    with pytest.raises(DataError, match="non-empty list of finite numbers"):
        bootstrap_interval(scores, seed=0)


def test_crossed_draws_have_the_spread_of_seeds_and_problems() -> None:
    """Score = seed effect + problem effect: their variances of the mean add up, each from its own sample variance."""
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(size=6), rng.normal(size=80)
    scores = seeds[:, None] + problems[None, :]
    draws = crossed_bootstrap([np.stack([scores, scores + 2.0])], seed=1, resamples=20_000)
    assert draws.shape == (20_000, 2)
    assert draws.mean(axis=0) == pytest.approx([scores.mean(), scores.mean() + 2], abs=0.02)
    assert draws[:, 0].var() == pytest.approx(seeds.var(ddof=1) / 6 + problems.var() / 80, rel=0.05)
    assert np.ptp(draws[:, 1] - draws[:, 0]) == pytest.approx(0, abs=1e-12)  # the arms are paired


def test_crossed_draws_weigh_benchmarks_equally_and_share_their_seeds() -> None:
    """Two seeds, of which one is drawn: 0 in both benchmarks or 10 in both, never one of each."""
    by_seed = np.array([[[0.0], [10.0]]])
    draws = crossed_bootstrap([np.repeat(by_seed, 3, axis=2), np.repeat(by_seed, 50, axis=2)], seed=0)
    assert set(draws[:, 0]) == {0.0, 10.0}
    large, small = np.full((1, 1, 500), 20.0), np.full((1, 1, 30), 80.0)
    assert (crossed_bootstrap([large, small], seed=0) == 50.0).all()
    slow = np.array([[[9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]])
    assert np.median(crossed_bootstrap([slow], seed=0, statistic=np.median)) == 1.0


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 0), (2, 2, 5)])
def test_crossed_draws_need_arrays_that_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="with the same arms and seeds"):
        crossed_bootstrap([np.zeros((2, 3, 4)), np.zeros(shape)], seed=0)
    with pytest.raises(DataError, match="finite"):
        crossed_bootstrap([np.full((1, 1, 1), np.nan)], seed=0)


def test_students_quantiles_are_those_of_the_tables() -> None:
    found = [student_quantile(freedom) for freedom in (1, 2, 3, 9, 30)]
    assert found == pytest.approx([12.706, 4.303, 3.182, 2.262, 2.042], abs=1e-3)
    assert student_quantile(4, 0.9) == pytest.approx(2.132, abs=1e-3)


def test_students_interval_by_hand() -> None:
    low, high = student_interval([50.0, 52.0, 57.0])
    assert (low, high) == pytest.approx((53 - 4.3027 * (13 / 3) ** 0.5, 53 + 4.3027 * (13 / 3) ** 0.5), abs=1e-3)
    with pytest.raises(DataError, match="two or more"):
        student_interval([50.0])
