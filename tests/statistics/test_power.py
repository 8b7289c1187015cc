import tracemalloc

import numpy as np
import pytest

from oar.common.errors import DataError
from oar.statistics.intervals import student_interval, student_quantile
from oar.statistics.power import power_of_paired_test, sd_interval, seeds_needed, smallest_shown


def simulated(difference: float, sd: float, seeds: int, runs: int = 40_000) -> float:
    """How often a paired t-test finds such a difference: drawn, tested and counted."""
    drawn = np.random.default_rng(seeds).normal(difference, sd, size=(runs, seeds))
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / np.sqrt(seeds))
    return float((np.abs(t) > student_quantile(seeds - 1)).mean())


@pytest.mark.parametrize(("difference", "sd", "seeds"), [(3, 1, 2), (1.5, 1, 3), (2, 1.5, 5), (-0.8, 1, 12), (0, 2, 4)])
def test_power_is_how_often_the_test_finds_it(difference: float, sd: float, seeds: int) -> None:
    assert power_of_paired_test(difference, sd, seeds) == pytest.approx(simulated(difference, sd, seeds), abs=0.008)


def test_the_test_that_is_simulated_is_the_one_of_the_intervals() -> None:
    """`student_interval` leaves 0 out exactly where |t| passes the quantile."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.normal(1, 1, size=4)
        low, high = student_interval(values)
        t = values.mean() / (values.std(ddof=1) / 2)
        assert (low > 0 or high < 0) == (abs(t) > student_quantile(3))


def test_seeds_of_the_textbook() -> None:
    """Cohen 1988, two-sided 5 %, power 80 %, paired: 199 for d = 0.2, 34 for 0.5, 15 for 0.8."""
    assert [seeds_needed(d, 1.0) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]
    assert seeds_needed(-1.0, 2.0) == 34  # the size counts, in units of sd
    assert seeds_needed(0.5, 1.0, power=0.95) == 54
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.2, 1.0, most=198) is None
    assert seeds_needed(0.2, 1.0, most=199) == 199
    assert seeds_needed(0.1, 0.0) == 2


def test_fewest_means_that_one_less_does_not_do() -> None:
    for difference in (0.4, 1.0, 3.0):
        count = seeds_needed(difference, 1.0)
        assert count is not None
        assert power_of_paired_test(difference, 1.0, count) >= 0.8
        assert count == 2 or power_of_paired_test(difference, 1.0, count - 1) < 0.8


def test_the_smallest_difference_is_found_with_that_power() -> None:
    for seeds in (2, 3, 10):
        smallest = smallest_shown(seeds, 0.7)
        assert power_of_paired_test(smallest, 0.7, seeds) == pytest.approx(0.8, abs=1e-4)
    assert simulated(smallest_shown(3, 2.0), 2.0, 3) == pytest.approx(0.8, abs=0.008)
    assert smallest_shown(3, 0.0) == 0


def test_few_seeds_hardly_tell_the_standard_deviation() -> None:
    """sd * sqrt((n - 1) / quantile of chi-square); 3 seeds: quantiles 0.0506 and 7.378."""
    assert sd_interval(1.0, 3) == pytest.approx(((2 / 7.3778) ** 0.5, (2 / 0.050636) ** 0.5), rel=5e-3)
    assert sd_interval(2.0, 10) == pytest.approx((2 * (9 / 19.023) ** 0.5, 2 * (9 / 2.7004) ** 0.5), rel=5e-3)
    rng = np.random.default_rng(1)
    inside = [low < 1 < high for low, high in (sd_interval(rng.normal(size=4).std(ddof=1), 4) for _ in range(600))]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)


def test_a_table_of_many_differences_holds_no_memory() -> None:
    """Each row asks for other numbers of seeds; a distribution is 3 MB."""
    tracemalloc.start()
    try:
        for difference in np.linspace(0.03, 0.5, 12):
            seeds_needed(float(difference), 1.0)
        assert tracemalloc.get_traced_memory()[0] < 50e6
    finally:
        tracemalloc.stop()


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(DataError, match="two seeds or more"):
        power_of_paired_test(1.0, 1.0, 1)
    with pytest.raises(DataError, match="two seeds or more"):
        sd_interval(1.0, 1)
    for sd in (-1.0, float("nan"), float("inf")):
        with pytest.raises(DataError, match="0 or more"):
            seeds_needed(1.0, sd)
