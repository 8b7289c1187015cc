"""Accuracy of arms, and what is linear in it, with the interval that every page shows. Pure numpy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from oar.statistics.intervals import (
    PERCENT,
    Estimate,
    crossed_bootstrap,
    estimate,
    percentile_interval,
    student_interval,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Percent correct, mean over benchmarks: by seed (seeds, arms), and bootstrap draws of its mean (resamples, arms).

    There are no draws where only scores of whole benchmarks were kept.
    """

    by_seed: Array
    draws: Array | None

    def linear(self, of: Callable[[Array], Array], within: tuple[float, float] = (-inf, inf)) -> Estimate:
        """A quantity that is linear in the accuracy of the arms, (..., arms) to (...), and lies `within` these bounds."""
        by_seed = of(self.by_seed)
        bootstrap = None if self.draws is None else percentile_interval(of(self.draws))
        student = student_interval(by_seed) if len(by_seed) > 1 else None
        return estimate(float(by_seed.mean()), bootstrap, student, within=within)

    def first(self) -> Estimate:
        """Of the first arm, percent."""
        return self.linear(lambda scores: scores[..., 0], within=(0.0, PERCENT))

    def difference(self) -> Estimate:
        """The first arm minus the second, percentage points."""
        return self.linear(lambda scores: scores[..., 0] - scores[..., 1], within=(-PERCENT, PERCENT))


def accuracy(benchmarks: Mapping[str, Array], *, by_problem: bool) -> Accuracy:
    """Of the scores (arms, seeds, problems) of each benchmark, percent.

    by_problem: false where the scores are of whole benchmarks, (arms, seeds, 1). Raises DataError where they do not fit together.
    """
    arrays = [benchmarks[name] for name in sorted(benchmarks)]  # in one order: the same draws whoever asks
    by_seed = np.mean([array.mean(axis=2).T for array in arrays], axis=0)
    return Accuracy(by_seed, crossed_bootstrap(arrays) if by_problem else None)
