"""How many training seeds would show a difference, and which difference the seeds at hand can show.

The test is Student's, two-sided, on the differences of two methods paired by seed. Differences are taken to be normal.
Pure numpy.
"""

from math import erfc, sqrt

import numpy as np

from oar.common.errors import DataError
from oar.statistics.intervals import CONFIDENCE, student_quantile

POWER = 0.8  # chance that a true difference is shown; Cohen 1988, "Statistical power analysis", §2.4
MOST_SEEDS = 10_000
_STEPS = 1000  # of the integral over the standard deviation that is found
_REACH = 12.0  # how many of its own standard deviations that may lie from the true one


def power_of_paired_test(difference: float, sd: float, seeds: int, *, confidence: float = CONFIDENCE) -> float:
    """Probability that `seeds` >= 2 paired differences, normal with this mean and standard deviation, exclude 0.

    The mean found is normal around the true one, and independent of the standard deviation found, whose square is chi-square
    distributed: for each value of the latter the former must exceed t times it. This is the noncentral t distribution
    (Johnson, Kotz, Balakrishnan 1995, ch. 31), both tails counted. Raises DataError for sd < 0, or fewer seeds.
    """
    _check(sd)
    if seeds < 2:
        raise DataError(f"A paired test needs two seeds or more, got {seeds}.")
    if sd == 0:
        return 1.0 if difference else 1 - confidence
    shift, quantile = difference / sd * sqrt(seeds), student_quantile(seeds - 1, confidence)
    ratio, probability = _found_over_true(seeds - 1)
    beyond = [_above(quantile * one - shift) + _above(quantile * one + shift) for one in ratio]
    return float(probability @ beyond)


def seeds_needed(
    difference: float, sd: float, *, power: float = POWER, confidence: float = CONFIDENCE, most: int = MOST_SEEDS
) -> int | None:
    """The fewest seeds whose paired test shows `difference` with this power; None where `most` do not.

    `difference`: true mean of the per-seed differences; `sd`: their standard deviation, in the same unit. Raises DataError for
    sd < 0.
    """
    low, high = 2, most
    if power_of_paired_test(difference, sd, high, confidence=confidence) < power:
        return None
    while low < high:
        middle = (low + high) // 2
        if power_of_paired_test(difference, sd, middle, confidence=confidence) < power:
            low = middle + 1
        else:
            high = middle
    return low


def smallest_shown(seeds: int, sd: float, *, power: float = POWER, confidence: float = CONFIDENCE) -> float:
    """The smallest true difference that `seeds` >= 2 paired runs show with this power, in the unit of `sd`.

    Raises DataError for sd < 0, or fewer seeds.
    """
    _check(sd)
    low, high = 0.0, 1.0
    while power_of_paired_test(high, 1.0, seeds, confidence=confidence) < power:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if power_of_paired_test(middle, 1.0, seeds, confidence=confidence) < power:
            low = middle
        else:
            high = middle
    return high * sd


def sd_interval(sd: float, seeds: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the true standard deviation lies, given the one of `seeds` >= 2 normal differences: few seeds hardly tell it.

    Raises DataError for sd < 0, or fewer seeds.
    """
    _check(sd)
    if seeds < 2:
        raise DataError(f"A standard deviation needs two seeds or more, got {seeds}.")
    ratio, probability = _found_over_true(seeds - 1)
    below = np.cumsum(probability) - probability / 2
    low, high = np.interp([(1 - confidence) / 2, (1 + confidence) / 2], below, ratio)
    return float(sd / high), float(sd / low)


def _found_over_true(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviation found over the true one: values (N,) and their probabilities (N,), from chi's density."""
    spread = _REACH / sqrt(2 * freedom)
    edges = np.linspace(max(0.0, 1 - spread), 1 + spread, _STEPS + 1)
    ratio = (edges[1:] + edges[:-1]) / 2
    log_density = (freedom - 1) * np.log(ratio) - freedom * ratio**2 / 2
    density = np.exp(log_density - log_density.max())
    return ratio, density / density.sum()


def _above(value: float) -> float:
    """Of the standard normal distribution."""
    return erfc(value / sqrt(2)) / 2


def _check(sd: float) -> None:
    if not sd >= 0 or not np.isfinite(sd):
        raise DataError(f"A standard deviation must be a finite number, 0 or more, but is {sd}.")
