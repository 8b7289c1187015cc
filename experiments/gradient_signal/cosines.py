"""How much of a policy gradient is signal: what weighting tokens does to it, measured without training.

A *unit* is a few groups of completions drawn from one fixed policy; an *arm* is a way to weigh their tokens. Every arm's
gradient of every unit is given, of the same completions. With mean m and covariance S over units, the gradient of a batch of b
units points along the true gradient of the expected reward, m*, with
    alignment(b) = <m*, m> / (|m*| sqrt(|m|^2 + tr S / b)):
weights that leave out tokens without influence lower tr S and keep <m*, m>; weights that leave out tokens with influence lower
both. The more groups a batch has, the less the first counts. All products of means are taken between different units (a
U-statistic), so noise does not pass for signal. Intervals leave one unit out at a time (jackknife). Pure numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.common.errors import DataError

Floats = NDArray[np.float64]
Gradients = Mapping[str, NDArray[np.float32]]  # by arm (units, parameters)

TARGET = "reward"  # the arm whose mean is the gradient of the expected reward
BEST = "best_by_class"  # the arm that `with_best_weights` adds
ALIGNMENT, ALIGNMENT_RATIO = "alignment", "alignment_ratio"
GAIN, GAIN_RATIO = "gain", "gain_ratio"
SIGNAL_SHARE, NOISE_SHARE = "signal_share", "noise_share"
FACT = "fact"  # what is true of a condition, beside the table's own metrics: `arm` is then the name of the fact
COLUMNS = ["arm", "metric", "batch", "value", "low", "high"]
Z = 1.959964  # of a 95 % interval; the jackknife has as many degrees of freedom as there are units
ADAM_EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Products:
    """Means of inner products of two arms' unit gradients, (units + 1,): over all units, then with each unit left out.

    same: of a unit with itself, mean and noise together; across: of different units, the product of the two means alone.
    """

    same: Floats
    across: Floats

    @classmethod
    def of(cls, a: NDArray[np.float32], b: NDArray[np.float32]) -> "Products":
        """Of gradients (units, parameters). Raises DataError for fewer than three units."""
        units = len(a)
        if units < 3:
            raise DataError(f"Leaving one unit out needs three or more of them, got {units}: raise units.")
        matrix = (a @ b.T).astype(np.float64)
        diagonal, total = matrix.diagonal(), matrix.sum()
        off = total - diagonal.sum()
        # What goes when unit i goes: its row and its column, of which its own product is not a part.
        gone = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * diagonal
        same = np.concatenate([[diagonal.mean()], (diagonal.sum() - diagonal) / (units - 1)])
        across = np.concatenate([[off / (units * (units - 1))], (off - gone) / ((units - 1) * (units - 2))])
        return cls(same, across)


def signal_table(
    gradients: Gradients, *, reference: str, classes: Sequence[str], batches: Sequence[float], lr: float
) -> pd.DataFrame:
    """Rows COLUMNS for every arm but the target, and for batches of so many units (inf: no noise is left).

    alignment: as above, and its ratio to that of `reference`. gain: percentage points of reward that one AdamW step of
    learning rate `lr` is expected to bring, to first order: lr <m*, m / sqrt(v)> with v, parameter by parameter, the mean
    square of a batch's gradient, which AdamW divides by; and its ratio; not for a batch without end. For `classes`, arms
    whose gradients add up to that of uniform weights: the share of <m*, m> (signal) and of tr S (noise) that each has; batch is
    NaN.
    What is divided by the length of a gradient that noise hides, in all units or without one of them, is NaN.
    Raises DataError where TARGET or the reference is missing.
    """
    for name in (TARGET, reference, *classes):
        if name not in gradients:
            raise DataError(f"Gradients must be there for the arm {name!r}, but are of {', '.join(gradients)}.")
    target = gradients[TARGET]
    length = _root(Products.of(target, target).across)
    arms = [name for name in gradients if name != TARGET]
    own = {name: Products.of(gradients[name], gradients[name]) for name in arms}
    towards = {name: Products.of(target, gradients[name]).across for name in arms}
    rows = []
    for batch in batches:
        cosine = {name: towards[name] / _size(own[name], batch) for name in arms}  # times |m*|
        for name in arms:
            rows.append([name, ALIGNMENT, batch, *_interval(cosine[name] / length)])
            rows.append([name, ALIGNMENT_RATIO, batch, *_interval(cosine[name] / cosine[reference])])
        if np.isinf(batch):
            continue
        gains = {name: lr * 100 * _preconditioned(target, gradients[name], batch) for name in arms}
        for name in arms:
            rows.append([name, GAIN, batch, *_interval(gains[name])])
            rows.append([name, GAIN_RATIO, batch, *_interval(gains[name] / gains[reference])])
    signal = np.sum([towards[name] for name in classes], axis=0)  # of uniform weights, whatever the reference's are
    noise = {name: own[name].same - own[name].across for name in classes}
    for name in classes:
        rows.append([name, SIGNAL_SHARE, np.nan, *_interval(towards[name] / signal)])
        rows.append([name, NOISE_SHARE, np.nan, *_interval(noise[name] / np.sum(list(noise.values()), axis=0))])
    return pd.DataFrame(rows, columns=COLUMNS)


def with_best_weights(gradients: Gradients, classes: Sequence[str], batch: float) -> dict[str, NDArray[np.float32]]:
    """The gradients with one arm more: the class arms, weighed so that batches of `batch` units are aligned best.

    A gradient is linear in its tokens' weights, so the best weight of each class solves (M + S / batch) w = h, with
    M + S / batch the second moments of the class gradients and h their products with the target. It is what any credit
    assignment that knows a token's class alone could reach. Each half of the units has the weights that are best for the
    other, so that nothing is fitted to its own noise; they are scaled to a mean absolute value of 1.
    """
    parts = np.stack([gradients[name] for name in classes])
    best = np.empty_like(parts[0])
    for half in (0, 1):
        fitted = parts[:, 1 - half :: 2]
        weights = best_weights(fitted, gradients[TARGET][1 - half :: 2], batch)
        best[half::2] = np.tensordot(weights.astype(np.float32), parts[:, half::2], axes=1)
    return {**gradients, BEST: best}


def best_weights(parts: NDArray[np.float32], target: NDArray[np.float32], batch: float) -> Floats:
    """(classes,) weights that align sum w_c g_c best with the target: parts (classes, units, parameters), target (units, ...).

    Classes that cannot be told apart share a weight; one without any gradient in these units gets 0.
    """
    classes = len(parts)
    moments, towards = np.empty((classes, classes)), np.empty(classes)
    for one in range(classes):
        towards[one] = Products.of(target, parts[one]).across[0]
        for other in range(classes):
            products = Products.of(parts[one], parts[other])
            same, across = products.same[0], products.across[0]
            moments[one, other] = across + (same - across) / batch
    weights = np.linalg.lstsq(moments, towards)[0]  # the shortest solution, where there are several
    return np.asarray(weights / np.abs(weights).mean())


def _size(own: Products, batch: float) -> Floats:
    """Root mean square length of a batch's gradient."""
    return _root(own.across + (own.same - own.across) / batch)


def _root(squares: Floats) -> Floats:
    """NaN where the unbiased estimate of a square is no square: noise hides the length."""
    return np.sqrt(np.where(squares > 0, squares, np.nan))


def _preconditioned(target: NDArray[np.float32], gradient: NDArray[np.float32], batch: float) -> Floats:
    """<m*, m / sqrt(v)> of an arm, (units + 1,); v is that of all units."""
    variance = gradient.var(axis=0, ddof=1)
    square = np.maximum(gradient.mean(axis=0) ** 2 - variance / len(gradient), 0)
    size = np.sqrt(square + variance / batch)
    moved = np.where(size > 0, gradient / (size + ADAM_EPS), 0).astype(np.float32)
    return Products.of(target, moved).across


def _interval(values: Floats) -> tuple[float, float, float]:
    """Estimate and jackknife interval of `values` (units + 1,): all units, then each left out; NaN where one of them is."""
    if np.isnan(values).any():
        return np.nan, np.nan, np.nan
    left_out = values[1:]
    error = np.sqrt((len(left_out) - 1) / len(left_out) * np.sum((left_out - left_out.mean()) ** 2))
    return float(values[0]), float(values[0] - Z * error), float(values[0] + Z * error)
