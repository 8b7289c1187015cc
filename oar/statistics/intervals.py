"""Means with honest uncertainty. Problems are the unit of resampling in an evaluation, seeds the unit in a table.

Pure numpy; nothing here knows where a score came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oar.common.errors import DataError

CONFIDENCE = 0.95
RESAMPLES = 20_000  # of problems and seeds
BOOTSTRAP_SEED = 1  # one for all: a quantity has the same interval wherever it is shown
GROUP_RESAMPLES = 2000  # of groups of values
NO_INTERVAL = (float("nan"), float("nan"))
PERCENT = 100.0
ENDS = ("low", "high", "interval_over", "bootstrap_low", "bootstrap_high", "student_low", "student_high")


def _scores(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be a non-empty list of finite numbers, got shape {array.shape}: {array.tolist()}."
        )
    return array


def percentile_interval(draws: NDArray[np.float64], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """What lies between the outer quantiles of bootstrap draws (draws,)."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity with the one interval at CONFIDENCE that every page shows and every verdict is made by.

    low, high: the hull of `bootstrap` (percentiles of draws) and `student` (over training seeds), so that what it leaves out both
    leave out: the first is too narrow where seeds differ much (results/coverage), the second may miss what problems add. `over`:
    what it takes to be random. An interval that cannot be had is NaN.
    """

    value: float
    low: float
    high: float
    over: str
    bootstrap: tuple[float, float]
    student: tuple[float, float]

    def ends(self) -> dict[str, float | str]:
        """Its interval for a table: ENDS."""
        return dict(zip(ENDS, (self.low, self.high, self.over, *self.bootstrap, *self.student), strict=True))


def estimate(
    value: float,
    bootstrap: tuple[float, float] | None,
    student: tuple[float, float] | None,
    *,
    units: str = "problems",
    within: tuple[float, float] = (-inf, inf),
) -> Estimate:
    """The quantity with its interval, from what there is: of a bootstrap over `units` and seeds, and of Student's over seeds.

    `within`: where the quantity can lie at all, which cuts the interval off: no accuracy is above 100 %.
    One seed has no `student`: its interval is over the units alone, and says so. Numbers are rounded to 9 digits: in which order
    they were summed is no part of them.
    """
    ends = [*(bootstrap or ()), *(student or ())]
    if not ends:
        over = "one seed, no interval"
    elif bootstrap is None:
        over = "seeds"
    else:
        over = f"{units} and seeds" if student else f"{units}, one seed"
    # An interval holds its own value: Jeffreys' draws of a score of 0 % are all above it.
    least, most = within
    low, high = (max(least, min(value, *ends)), min(most, max(value, *ends))) if ends else NO_INTERVAL
    own = bootstrap or NO_INTERVAL, student or NO_INTERVAL
    return Estimate(_rounded(value), _rounded(low), _rounded(high), over, *((_rounded(a), _rounded(b)) for a, b in own))


def _rounded(value: float) -> float:
    return round(value, 9) + 0.0  # never -0.0


def crossed_bootstrap(
    benchmarks: Sequence[ArrayLike], *, seed: int = BOOTSTRAP_SEED, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """Bootstrap draws of each arm's mean over benchmarks, (resamples, arms), where seeds and problems are both random.

    Each benchmark is an array (arms, seeds, problems) of scores in percent, with the same arms and seeds. Samples of one problem
    are not independent of each other, so a problem has one score, their mean. A draw takes training seeds with replacement, the
    same for all benchmarks, and within each benchmark weighs problems as the Bayesian bootstrap does (Rubin 1981). All arms
    have the same draws, so that differences and ratios of the columns are paired. Of n > 1 seeds, n - 1 are drawn: seeds are few,
    and n draws would show (n - 1) / n of their variance (Rao and Wu 1988, "Resampling inference with complex survey data").
    Drawing both sides of a table makes intervals mildly too wide (Owen 2007, "The pigeonhole bootstrap"). One seed has no
    spread of its own.

    Right-or-wrong scores are so drawn from Beta(right, wrong), which has no spread where all of a benchmark is right or all is
    wrong, as with 0 of 30: there, an arm's draws are Jeffreys' Beta(right + 1/2, wrong + 1/2) (Brown, Cai and DasGupta 2001,
    "Interval estimation for a binomial proportion"). Raises DataError where the arrays do not fit together or hold a value that
    is not finite.
    """
    arrays = [np.asarray(scores, dtype=np.float64) for scores in benchmarks]
    shapes = {array.shape[:2] for array in arrays}
    if len(shapes) != 1 or any(array.ndim != 3 or not array.size or not np.isfinite(array).all() for array in arrays):
        raise DataError(
            "Benchmarks must be finite scores (arms, seeds, problems) with the same arms and seeds, "
            f"got the shapes {[array.shape for array in arrays]}."
        )
    ((arms, seeds),) = shapes
    rng = np.random.default_rng(seed)
    (at_the_ends,) = rng.spawn(1)  # a stream of its own: which arms need it does not move the other draws
    times_drawn = rng.multinomial(max(1, seeds - 1), np.full(seeds, 1 / seeds), size=resamples)
    seed_weights = times_drawn / max(1, seeds - 1)
    total = np.zeros((resamples, arms))
    for array in arrays:
        problems = array.shape[2]
        weights = rng.standard_exponential((resamples, problems))
        weights /= weights.sum(axis=1, keepdims=True)
        drawn = np.einsum("ras,rs->ra", np.tensordot(weights, array, axes=(1, 2)), seed_weights)
        for arm in range(arms):
            right = problems * array[arm, 0, 0] / PERCENT
            if np.ptp(array[arm]) == 0 and right in (0, problems):
                drawn[:, arm] = PERCENT * at_the_ends.beta(right + 0.5, problems - right + 0.5, size=resamples)
        total += drawn
    return total / len(arrays)


def median_bootstrap(values: ArrayLike) -> NDArray[np.float64]:
    """Bootstrap draws (RESAMPLES, arms) of each arm's geometric mean over seeds of the median over steps, of values (arms, seeds,
    steps) above 0; seeds as in `crossed_bootstrap`.

    A draw takes seeds and steps with replacement, the same for all arms. Raises DataError for none, or one that is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 3 or not array.size or not np.isfinite(array).all():
        raise DataError(f"Values must be finite and of the shape (arms, seeds, steps), got {array.shape}.")
    _, seeds, steps = array.shape
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn_seeds = rng.integers(seeds, size=(RESAMPLES, max(1, seeds - 1), 1))
    drawn_steps = rng.integers(steps, size=(RESAMPLES, 1, steps))
    by_seed = [np.median(arm[drawn_seeds, drawn_steps], axis=2) for arm in array]
    return np.stack([np.exp(np.log(medians).mean(axis=1)) for medians in by_seed], axis=1)


def resampled_sums(
    values: ArrayLike, groups: ArrayLike, *, seed: int, resamples: int = GROUP_RESAMPLES
) -> NDArray[np.float64]:
    """Sums over whole groups drawn with replacement, as many as there are: values (N, ...) to (resamples, ...).

    For values that are not independent within a group, as completions of one problem are not: `groups` (N,) names the group
    of each. Any ratio of such sums is a bootstrap draw of that ratio. Raises DataError where there is nothing to draw.
    """
    array, (names, members) = np.asarray(values, dtype=np.float64), np.unique(groups, return_inverse=True)
    if not len(array) or len(array) != len(members) or not np.isfinite(array).all():
        raise DataError(f"Every value needs a group and must be finite, got {array.shape} in {len(members)} groups.")
    totals = np.zeros((len(names), *array.shape[1:]))
    np.add.at(totals, members, array)
    rng = np.random.default_rng(seed)
    times_drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return np.asarray(np.tensordot(times_drawn, totals, axes=1), dtype=np.float64)


def grouped_interval(
    values: ArrayLike,
    groups: ArrayLike,
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    resamples: int = GROUP_RESAMPLES,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` (N,), resampling whole `groups` (N,) of any sizes."""
    scores = _scores(values, "values")
    sums = resampled_sums(np.stack([scores, np.ones_like(scores)], axis=1), groups, seed=seed, resamples=resamples)
    return percentile_interval(sums[:, 0] / sums[:, 1], confidence)


def student_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Student's interval of the mean of two or more values (n,): few seeds say little, and their bootstrap would hide that.

    Raises DataError for fewer values or one that is not finite.
    """
    mean, error = mean_and_standard_error(values)
    if error is None:
        raise DataError("An interval over seeds needs two or more, got one.")
    reach = error * student_quantile(np.size(values) - 1, confidence)
    return mean - reach, mean + reach


def ratio_interval(ones: ArrayLike, others: ArrayLike) -> tuple[float, float]:
    """Fieller's interval of mean(ones) / mean(others), two or more pairs (n,): the ratios r at which Student's interval of
    ones - r * others holds 0 (Fieller 1954, "Some problems in interval estimation").

    Raises DataError for fewer pairs, and where Student's interval of `others` holds 0: the ratio has then no bounds.
    """
    x, y = _scores(ones, "ones"), _scores(others, "others")
    if y.size < 2 or np.multiply(*student_interval(y)) <= 0:
        raise DataError("A ratio needs two or more pairs whose second values are clearly beside 0.")
    (xx, xy), (_, yy) = np.cov(x, y) * student_quantile(y.size - 1) ** 2 / y.size
    # (x - r y)^2 = xx - 2 r xy + r^2 yy, solved for r
    square, linear, constant = y.mean() ** 2 - yy, x.mean() * y.mean() - xy, x.mean() ** 2 - xx
    reach = np.sqrt(max(0.0, linear**2 - square * constant))
    return float((linear - reach) / square), float((linear + reach) / square)


@cache
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that Student's distribution with `freedom` degrees stays below in absolute value with probability `confidence`."""
    angle, below = _student(freedom)
    return float(np.sqrt(freedom) * np.tan(np.interp(confidence, below, angle)))


def student_p(values: ArrayLike) -> float:
    """Two-sided p of Student's test that the mean of two or more values (n,) is 0; `student_interval` leaves 0 out where p < 5 %.

    Raises DataError for fewer values or one that is not finite.
    """
    mean, error = mean_and_standard_error(values)
    if error is None:
        raise DataError("A test over seeds needs two or more, got one.")
    if error == 0:
        return float(mean == 0)
    freedom = np.size(values) - 1
    angle, below = _student(freedom)
    return float(1 - np.interp(np.arctan(abs(mean) / error / np.sqrt(freedom)), angle, below))


@lru_cache(maxsize=8)  # 3 MB each: of as many degrees as a search for seeds asks for they would fill the memory
def _student(freedom: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Angles (N,) and the probability (N,) that |t| = sqrt(freedom) tan(angle) stays below.

    The density of the angle is proportional to cos(angle) ** (freedom - 1).
    """
    edges = np.linspace(0.0, np.pi / 2, 200_001)
    below = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (freedom - 1))
    return edges[1:], below / below[-1]


def mean_and_standard_error(values: ArrayLike) -> tuple[float, float | None]:
    """Mean over seeds and its standard error s / sqrt(n), s with n - 1; None for one seed, which shows no spread."""
    array = _scores(values, "values")
    error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else None
    return float(array.mean()), error
