"""Means with honest uncertainty. Problems are the unit of resampling in an evaluation, seeds the unit in a table.

Pure numpy; nothing here knows where a score came from.
"""

from collections.abc import Sequence

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


def _percentiles(means: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bootstrap_interval(
    per_problem_scores: ArrayLike, *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean score, resampling problems.

    Samples of one problem are not independent of each other, so give one score per problem (its mean over samples),
    shape (problems,). The interval has the unit of the scores. Raises DataError on no scores or a non-finite one.
    """
    scores = _scores(per_problem_scores, "per_problem_scores")
    return _percentiles(_resampled_means(scores, resamples, np.random.default_rng(seed)), confidence)


def macro_bootstrap_interval(
    benchmarks: Sequence[ArrayLike], *, seed: int, confidence: float = CONFIDENCE, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Interval of the unweighted mean over benchmarks: problems are resampled within each benchmark."""
    if not benchmarks:
        raise DataError("A mean over benchmarks needs at least one benchmark, got none.")
    rng = np.random.default_rng(seed)
    means = [_resampled_means(_scores(scores, "per_problem_scores"), resamples, rng) for scores in benchmarks]
    return _percentiles(np.mean(means, axis=0), confidence)


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
    return _percentiles(sums[:, 0] / sums[:, 1], confidence)


def mean_and_standard_error(values: ArrayLike) -> tuple[float, float | None]:
    """Mean over seeds and its standard error s / sqrt(n), s with n - 1; None for one seed, which shows no spread."""
    array = _scores(values, "values")
    error = float(array.std(ddof=1) / np.sqrt(array.size)) if array.size > 1 else None
    return float(array.mean()), error
