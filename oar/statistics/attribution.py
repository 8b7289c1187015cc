"""How well a token signal finds the tokens that are known to matter (docs/METHOD.md §7.2, §7.6, §7.8).

Everything here looks at one completion: `signal` (T,) is a value for each of its reasoning tokens, `truth` (T,) marks those
that matter. Equal values are taken in every order alike, so whatever is returned is an expectation over random
tie-breaking: a constant signal gives chance exactly, never the luck of the order in which tokens are stored. NaN stands for
what is not defined (no token that matters, none that does not). Pure numpy.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oar.common.errors import DataError

FIFTH = 5
BINS = 10  # of the calibration

Floats = NDArray[np.float64]


def top_fifth(length: int) -> int:
    """How many of `length` tokens the top fifth has: at least one, rounded up."""
    return -(-length // FIFTH)


def mid_ranks(values: ArrayLike) -> Floats:
    """Ranks 1 ... T in ascending order; equal values share the mean of their ranks. Shape (T,)."""
    array = _finite(values, "values")
    _, group, sizes = np.unique(array, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def top_k_probability(signal: ArrayLike, k: int) -> Floats:
    """Probability of each token to be among the k of largest signal, (T,); it sums to min(k, T)."""
    array = _finite(signal, "signal")
    if k >= array.size:
        return np.ones(array.size)
    border = np.partition(array, array.size - k)[array.size - k] if k > 0 else np.inf
    above, tied = array > border, array == border
    return above + tied * ((k - above.sum()) / max(1, tied.sum()))


def recall_at(signal: ArrayLike, truth: ArrayLike, k: int) -> float:
    """Share of the tokens that matter among the k of largest signal; no signal can exceed k / (how many matter)."""
    chosen, marked = top_k_probability(signal, k), _marks(truth, signal)
    return float(chosen[marked].sum() / marked.sum()) if marked.any() else np.nan


def recall_at_truth(signal: ArrayLike, truth: ArrayLike) -> float:
    """`recall_at` with k the number of tokens that matter: 1 for a perfect signal, their share for a constant one."""
    return recall_at(signal, truth, int(_marks(truth, signal).sum()))


def recall_at_top_fifth(signal: ArrayLike, truth: ArrayLike) -> float:
    """`recall_at` with k a fifth of the tokens."""
    return recall_at(signal, truth, top_fifth(np.size(signal)))


def auc(signal: ArrayLike, truth: ArrayLike) -> float:
    """Probability that a token that matters has a larger signal than one that does not; equal values count a half.

    With a single token that matters this is its percentile: 1 for the largest signal, 0 for the smallest.
    """
    marked = _marks(truth, signal)
    positive = int(marked.sum())
    negative = marked.size - positive
    if not positive or not negative:
        return np.nan
    return float((mid_ranks(signal)[marked].sum() - positive * (positive + 1) / 2) / (positive * negative))


def spearman(signal: ArrayLike, reference: ArrayLike) -> float:
    """Rank correlation: Pearson's of the mid-ranks. 0 for a constant signal, NaN where the reference is constant."""
    ours, theirs = (ranks - ranks.mean() for ranks in (mid_ranks(signal), mid_ranks(reference)))
    _same_length(ours, theirs)
    if not theirs.any():
        return np.nan
    return float(ours @ theirs / np.sqrt((ours @ ours) * (theirs @ theirs))) if ours.any() else 0.0


def top_fifth_overlap(signal: ArrayLike, reference: ArrayLike) -> float:
    """Share of the reference's top fifth that is in the signal's; ties are broken for each of them by itself."""
    k = top_fifth(np.size(signal))
    ours, theirs = top_k_probability(signal, k), top_k_probability(reference, k)
    _same_length(ours, theirs)
    return float(ours @ theirs / k)


def gate_scores(importance: ArrayLike) -> Floats | None:
    """s = log1p(I), min-max to [0, 1], as the gate sees it (docs/METHOD.md §5.1); None for a constant signal, which has none."""
    scores = np.log1p(_finite(importance, "importance"))
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else None


def calibration_counts(scores: ArrayLike, truth: ArrayLike, bins: int = BINS) -> Floats:
    """Tokens, tokens that matter and the sum of scores in each of `bins` equal parts of [0, 1]: shape (3, bins).

    The last part holds the score 1. Counts of several completions add up.
    """
    array, marked = _finite(scores, "scores"), _marks(truth, scores)
    part = np.minimum((array * bins).astype(int), bins - 1)
    return np.stack([np.bincount(part, weights, minlength=bins) for weights in (np.ones(array.size), marked, array)])


def calibration_shares(counts: Floats) -> Floats:
    """Share of tokens that matter in each part, NaN for an empty one; counts (..., 3, bins) to (..., bins)."""
    tokens, marked = counts[..., 0, :], counts[..., 1, :]
    return np.divide(marked, tokens, out=np.full(tokens.shape, np.nan), where=tokens > 0)


def calibration_error(counts: Floats) -> Floats:
    """Expected calibration error: |mean score - share that matters| of each part, weighted by its tokens.

    counts (..., 3, bins) to (...).
    """
    tokens, marked, scores = np.moveaxis(counts, -2, 0)
    return np.abs(scores - marked).sum(axis=-1) / tokens.sum(axis=-1)


def _finite(values: ArrayLike, name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise DataError(
            f"{name} must be a non-empty list of finite numbers, got shape {array.shape}: {array.tolist()}."
        )
    return array


def _marks(truth: ArrayLike, signal: ArrayLike) -> NDArray[np.bool_]:
    marked = np.asarray(truth, dtype=bool)
    _same_length(marked, np.asarray(signal))
    return marked


def _same_length(one: NDArray[np.generic], other: NDArray[np.generic]) -> None:
    if one.shape != other.shape:
        raise DataError(f"A signal needs one value for each token, but the shapes are {one.shape} and {other.shape}.")
