from math import comb

import numpy as np
import pytest

from oar.common.errors import DataError
from oar.statistics.accuracy import accuracy
from oar.statistics.intervals import (
    crossed_bootstrap,
    estimate,
    grouped_interval,
    mean_and_standard_error,
    median_bootstrap,
    percentile_interval,
    ratio_interval,
    resampled_sums,
    student_interval,
    student_p,
    student_quantile,
)


def test_standard_error_by_hand() -> None:
    mean, error = mean_and_standard_error([50.0, 52.0, 57.0])  # deviations -3, -1, 4: variance 26 / 2
    assert mean == pytest.approx(53.0)
    assert error == pytest.approx((13.0 / 3) ** 0.5)
    assert mean_and_standard_error([50.0]) == (50.0, None)


def one_model(*benchmarks: object, **more: int) -> np.ndarray:
    """Draws of the accuracy of one model under one seed."""
    return crossed_bootstrap([np.asarray(scores, dtype=float)[None, None] for scores in benchmarks], **more)[:, 0]


def test_bootstrap_covers_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(400):
        scores = 100 * rng.binomial(1, 0.4, size=200)
        low, high = percentile_interval(one_model(scores, seed=trial, resamples=500), 0.9)
        hits += low <= 40 <= high
    assert 0.86 <= hits / 400 <= 0.94  # 0.90 +- 2.7 standard errors


def test_problems_are_the_unit_of_uncertainty() -> None:
    per_problem = np.repeat([0.0, 100.0], 50)
    low, high = percentile_interval(one_model(per_problem))
    assert (high - low) / 2 == pytest.approx(1.96 * 5, rel=0.05)  # 50 / sqrt(100)
    assert percentile_interval(one_model(per_problem)) == (low, high)
    assert percentile_interval(one_model(np.full(30, 25.0))) == pytest.approx((25.0, 25.0))


@pytest.mark.parametrize("seeds", [1, 3])
def test_no_problem_solved_is_not_sure_to_be_none_ever(seeds: int) -> None:
    """0 of 30 (AIME). Jeffreys' upper end is the x with P(Beta(1/2, 30 1/2) < x) = 0.975, and such a Beta is t^2 / (61 + t^2) for
    Student's t of 61 degrees of freedom, which stays below 2.2965 with that probability: x = 0.0796."""
    none, whole = np.zeros((1, seeds, 30)), np.full((1, seeds, 30), 100.0)
    low, high = percentile_interval(crossed_bootstrap([none])[:, 0])
    assert (low, high) == pytest.approx((0.0, 7.96), abs=0.15)
    assert percentile_interval(crossed_bootstrap([whole])[:, 0]) == pytest.approx((92.04, 100.0), abs=0.15)
    both = crossed_bootstrap([np.concatenate([none, none])])
    low, high = percentile_interval(both[:, 0] - both[:, 1])
    assert low < -5
    assert high > 5
    found = accuracy({"aime24": none}, by_problem=True).first()
    assert (found.value, found.low) == (0.0, 0.0)  # an interval holds its own value
    assert found.high == pytest.approx(7.96, abs=0.15)
    found = accuracy({"aime24": whole}, by_problem=True).first()
    assert (found.value, found.high) == (100.0, 100.0)


def test_the_mean_over_benchmarks_weighs_them_equally() -> None:
    large, small = np.full(500, 20.0), np.full(30, 80.0)
    assert percentile_interval(one_model(large, small)) == pytest.approx((50.0, 50.0))
    # Only the small one is uncertain: half its standard error, 50 / sqrt(30), survives in the mean of two.
    low, high = percentile_interval(one_model(large, np.repeat([0.0, 100.0], 15)))
    assert (high - low) / 2 == pytest.approx(1.96 * 50 / 30**0.5 / 2, rel=0.1)


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
        mean_and_standard_error(scores)


def test_crossed_draws_have_the_spread_of_seeds_and_problems() -> None:
    """Score = seed effect + problem effect: their variances of the mean add up, each from its own sample variance."""
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(size=6), rng.normal(size=80)
    scores = seeds[:, None] + problems[None, :]
    draws = crossed_bootstrap([np.stack([scores, scores + 2.0])])
    assert draws.shape == (20_000, 2)
    assert draws.mean(axis=0) == pytest.approx([scores.mean(), scores.mean() + 2], abs=0.02)
    assert draws[:, 0].var() == pytest.approx(seeds.var(ddof=1) / 6 + problems.var() / 80, rel=0.05)
    assert np.ptp(draws[:, 1] - draws[:, 0]) == pytest.approx(0, abs=1e-12)  # the arms are paired


def test_crossed_draws_weigh_benchmarks_equally_and_share_their_seeds() -> None:
    """Two seeds, of which one is drawn: 0 in both benchmarks or 10 in both, never one of each."""
    by_seed = np.array([[[0.0], [10.0]]])
    draws = crossed_bootstrap([np.repeat(by_seed, 3, axis=2), np.repeat(by_seed, 50, axis=2)])
    assert set(draws[:, 0].round(9)) == {0.0, 10.0}
    large, small = np.full((1, 1, 500), 20.0), np.full((1, 1, 30), 80.0)
    assert crossed_bootstrap([large, small]) == pytest.approx(50.0)


def test_which_arms_stand_beside_it_does_not_move_an_arms_draws() -> None:
    one, other = np.random.default_rng(0).uniform(0, 100, size=(2, 1, 3, 20))
    pair = crossed_bootstrap([np.concatenate([one, other])] * 2)
    swapped = crossed_bootstrap([np.concatenate([other, np.zeros_like(one), one])] * 2)
    assert pair[:, 0] == pytest.approx(swapped[:, 2])
    assert pair[:, 1] == pytest.approx(swapped[:, 0])


def test_the_order_of_benchmarks_moves_no_draw() -> None:
    """One accuracy has one interval, whoever reads its benchmarks in whichever order."""
    scores = {"b": np.arange(20.0)[None, None], "a": np.array([[[0.0, 100.0, 50.0]]])}
    one, other = (accuracy({name: scores[name] for name in order}, by_problem=True) for order in ("ab", "ba"))
    assert np.array_equal(one.draws, other.draws)


def test_medians_are_drawn_over_seeds_and_steps() -> None:
    slow = np.array([[[9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]])
    drawn = median_bootstrap(slow)
    assert np.median(drawn) == 1.0
    # As many steps as there are: the median is the slow one where five or more of nine draws are.
    assert (drawn > 5).mean() == pytest.approx(sum(comb(9, k) * 8 ** (9 - k) for k in range(5, 10)) / 9**9, abs=1e-3)
    by_seed = np.array([[[1.0], [5.0]], [[2.0], [10.0]]])
    drawn = median_bootstrap(by_seed)  # one of the two seeds at a time
    assert set(map(tuple, drawn.round(9))) == {(1.0, 2.0), (5.0, 10.0)}
    # Two of three: a slow machine's ratio of 2 counts as much as a fast one's of 0.5.
    drawn = median_bootstrap(np.array([[[1.0], [1.0], [40.0]], [[2.0], [2.0], [20.0]]]))
    assert set((drawn[:, 1] / drawn[:, 0]).round(9)) == {2.0, 1.0, 0.5}
    # Steps are drawn alike for all seeds: where these are the same, no median is between two steps.
    drawn = median_bootstrap(np.tile([1.0, 1.0, 4.0], (1, 3, 1)))
    assert set(drawn[:, 0].round(9)) == {1.0, 4.0}
    with pytest.raises(DataError, match=r"\(arms, seeds, steps\)"):
        median_bootstrap(np.zeros((2, 3)))


def test_an_estimate_is_judged_by_both_intervals() -> None:
    bootstrap = (1.05, 2.95)
    found = estimate(2.0, bootstrap, (-1.0, 2.5))
    assert (found.low, found.high, found.over) == (-1.0, 2.95, "problems and seeds")
    assert (found.bootstrap, found.student) == ((1.05, 2.95), (-1.0, 2.5))
    alone = estimate(2.0, bootstrap, None, units="steps")
    assert (alone.low, alone.high, alone.over) == (1.05, 2.95, "steps, one seed")
    seeds = estimate(2.0, None, (1.0, 3.0))
    assert (seeds.low, seeds.high, seeds.over) == (1.0, 3.0, "seeds")
    bounded = estimate(2.0, bootstrap, (-1.0, 2.5), within=(0.0, 2.9))
    assert (bounded.low, bounded.high) == (0.0, 2.9)
    assert str(estimate(-1e-12, None, None).value) == "0.0"  # what sums leave behind has no sign
    nothing = estimate(2.0, None, None)
    assert (np.isnan(nothing.low), nothing.over) == (True, "one seed, no interval")


def test_no_accuracy_is_said_to_be_beyond_what_there_is() -> None:
    """Student's interval over few seeds would reach there."""
    scores = np.stack([[[100.0], [80.0], [100.0]], [[0.0], [20.0], [0.0]]])
    above, below = (accuracy({"a": arms}, by_problem=False).difference() for arms in (scores, scores[::-1]))
    assert above.student[1] > 100.0 == above.high
    assert below.student[0] < -100.0 == below.low
    assert accuracy({"a": scores[:1]}, by_problem=False).first().high == 100.0
    assert accuracy({"a": scores[1:]}, by_problem=False).first().low == 0.0


def test_students_p_is_that_of_its_interval() -> None:
    """With two degrees of freedom, P(|t| > x) = 1 - x / sqrt(2 + x * x)."""
    values = [1.0, 2.0, 6.0]
    t = 3 / (7 / 3) ** 0.5
    assert student_p(values) == pytest.approx(1 - t / (2 + t * t) ** 0.5, abs=1e-5)
    assert student_p([-one for one in values]) == student_p(values)
    assert (student_p([2.0, 2.0]), student_p([0.0, 0.0])) == (0.0, 1.0)


def test_a_ratios_interval_holds_the_ratios_that_leave_nothing() -> None:
    """Its ends by their definition: there, Student's interval of what is left touches 0."""
    ones, others = np.array([3.0, 4.5, 5.0, 4.0]), np.array([8.0, 9.0, 11.0, 9.5])
    low, high = ratio_interval(ones, others)
    assert low < ones.mean() / others.mean() < high
    assert min(map(abs, student_interval(ones - low * others))) == pytest.approx(0, abs=1e-9)
    assert min(map(abs, student_interval(ones - high * others))) == pytest.approx(0, abs=1e-9)
    with pytest.raises(DataError, match="clearly beside 0"):
        ratio_interval(ones, others - 9.0)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 0), (2, 2, 5)])
def test_crossed_draws_need_arrays_that_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="with the same arms and seeds"):
        crossed_bootstrap([np.zeros((2, 3, 4)), np.zeros(shape)])
    with pytest.raises(DataError, match="finite"):
        crossed_bootstrap([np.full((1, 1, 1), np.nan)])


def test_students_quantiles_are_those_of_the_tables() -> None:
    found = [student_quantile(freedom) for freedom in (1, 2, 3, 9, 30)]
    assert found == pytest.approx([12.706, 4.303, 3.182, 2.262, 2.042], abs=1e-3)
    assert student_quantile(4, 0.9) == pytest.approx(2.132, abs=1e-3)


def test_students_interval_by_hand() -> None:
    low, high = student_interval([50.0, 52.0, 57.0])
    assert (low, high) == pytest.approx((53 - 4.3027 * (13 / 3) ** 0.5, 53 + 4.3027 * (13 / 3) ** 0.5), abs=1e-3)
    with pytest.raises(DataError, match="two or more"):
        student_interval([50.0])
