"""Means with honest uncertainty. Problems are the unit of resampling in an evaluation, seeds the unit in a table.

Pure numpy; nothing here knows where a score came from.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oar.errors import DataError

CONFIDENCE = 0.95
RESAMPLES = 2000


def _scores(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be a non-empty list of finite numbers, got shape {array.shape}: {array.tolist()}."
        )
    return array


def _resampled_means(scores: NDArray[np.float64], resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of `resamples` draws with replacement: shape (resamples,)."""
    return scores[rng.integers(scores.size, size=(resamples, scores.size))].mean(axis=1)


def percentile_interval(draws: NDArray[np.float64], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """What lies between the outer quantiles of bootstrap draws (draws,)."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bootstrap_interval(
    per_problem_scores: ArrayLike, *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean score, resampling problems.

    Samples of one problem are not independent of each other, so give one score per problem (its mean over samples),
    shape (problems,). The interval has the unit of the scores. Raises DataError on no scores or a non-finite one.
    """
    scores = _scores(per_problem_scores, "per_problem_scores")
    return percentile_interval(_resampled_means(scores, resamples, np.random.default_rng(seed)), confidence)


def macro_bootstrap_interval(
    benchmarks: Sequence[ArrayLike], *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Interval of the unweighted mean over benchmarks: problems are resampled within each benchmark."""
    if not benchmarks:
        raise DataError("A mean over benchmarks needs at least one benchmark, got none.")
    rng = np.random.default_rng(seed)
    means = [_resampled_means(_scores(scores, "per_problem_scores"), resamples, rng) for scores in benchmarks]
    return percentile_interval(np.mean(means, axis=0), confidence)


def crossed_bootstrap(
    benchmarks: Sequence[ArrayLike],
    *,
    seed: int,
    statistic: Callable[..., NDArray[np.float64]] = np.mean,
    resamples: int = RESAMPLES,
) -> NDArray[np.float64]:
    """Bootstrap draws of each arm's mean over benchmarks, (resamples, arms), where seeds and problems are both random.

    Each benchmark is an array (arms, seeds, problems) of scores, with the same arms and seeds. A draw takes training seeds with
    replacement, the same for all benchmarks, and within each benchmark problems; every drawn problem is scored under every
    drawn seed by `statistic`, which is called with `axis`. All arms have the same draws, so that differences and ratios of
    the columns are paired. Of n > 1 seeds, n - 1 are drawn: seeds are few, and n draws would show (n - 1) / n of their variance
    (Rao and Wu 1988, "Resampling inference with complex survey data"). Drawing both sides of a table makes intervals mildly too
    wide (Owen 2007, "The pigeonhole bootstrap"). One seed or one problem has no spread of its own. Raises DataError
    where the arrays do not fit together or hold a value that is not finite.
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
    drawn_seeds = rng.integers(seeds, size=(resamples, max(1, seeds - 1), 1))
    total = np.zeros((resamples, arms))
    for array in arrays:
        problems = array.shape[2]
        drawn = rng.integers(problems, size=(resamples, 1, problems))
        for arm in range(arms):
            total[:, arm] += statistic(array[arm][drawn_seeds, drawn], axis=(1, 2))
    return total / len(arrays)


def resampled_sums(
    values: ArrayLike, groups: ArrayLike, *, seed: int, resamples: int = RESAMPLES
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
    resamples: int = RESAMPLES,
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


@cache
def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that Student's distribution with `freedom` degrees stays below in absolute value with probability `confidence`.

    With t = sqrt(freedom) tan(angle), the density of the angle is proportional to cos(angle) ** (freedom - 1).
    """
    edges = np.linspace(0.0, np.pi / 2, 200_001)
    below = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (freedom - 1))
    return float(np.sqrt(freedom) * np.tan(np.interp(confidence, below / below[-1], edges[1:])))


def mean_and_standard_error(values: ArrayLike) -> tuple[float, float | None]:
    """Mean over seeds and its standard error s / sqrt(n), s with n - 1; None for one seed, which shows no spread."""
    array = _scores(values, "values")
    error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else None
    return float(array.mean()), error
