"""What every study of token signals looks at: one model's completions, what is true of them, and every signal on them.

Metrics are taken per completion where they are about order, and pooled over tokens where they are about amounts; intervals
always resample problems, since completions of one problem are not independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.signals.recall import Row, Truth
from oar.method.importance import CreditInputs
from oar.statistics.attribution import Floats
from oar.statistics.intervals import percentile_interval, resampled_sums

NOWHERE = "nowhere"
Draws = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Examined:
    """N completions of one model, each with its own number T of reasoning tokens.

    roles: of each completion what its reasoning tokens are, (T,), words of `oar.tasks.words.oracle`; first_errors: of each
    the role of its first wrong token, the answer included, NOWHERE where it is right or the error has no token; importance
    and weights: by signal, for each completion (T,), as the gate gets it and as the gate leaves it; inputs: what the
    signals were computed on.
    """

    truth: Truth
    roles: Sequence[NDArray[np.str_]]
    first_errors: Sequence[str]
    importance: Mapping[str, Sequence[Floats]]
    weights: Mapping[str, Sequence[Floats]]
    inputs: CreditInputs

    @property
    def problems(self) -> NDArray[np.str_]:
        """(N,) whose completion."""
        return np.asarray(self.truth.problems)


def pooled_mean(values: Floats, counts: Floats, problems: NDArray[np.str_], *, seed: int) -> tuple[float, float, float]:
    """sum(values) / sum(counts), each (N,), with its interval over problems."""
    draws = resampled_sums(np.stack([values, counts], axis=1), problems, seed=seed)
    return _with_interval(values.sum() / counts.sum(), draws[:, 0], draws[:, 1])


def gap(
    values: Floats, first: NDArray[np.bool_], problems: NDArray[np.str_], *, seed: int
) -> tuple[float, float, float]:
    """Mean of `values` (N,) where `first` (N,) minus the mean of the others; both means of a draw are of the same problems."""
    ones = np.stack([first, ~first], axis=1).astype(float)
    draws = resampled_sums(np.concatenate([values[:, None] * ones, ones], axis=1), problems, seed=seed)
    total = draws[:, 0] * draws[:, 3] - draws[:, 1] * draws[:, 2]
    return _with_interval(values[first].mean() - values[~first].mean(), total, draws[:, 2] * draws[:, 3])


def gap_rows(
    metrics: Mapping[str, pd.DataFrame], first: NDArray[np.bool_], problems: NDArray[np.str_], split: str, *, seed: int
) -> list[Row]:
    """A row per signal and metric that is defined on both sides, under the name `split`."""
    rows: list[Row] = []
    for name, measured in metrics.items():
        for metric, column in measured.items():
            defined = column.notna().to_numpy()
            side = first[defined]
            if side.any() and not side.all():
                found = gap(column[defined].to_numpy(), side, problems[defined], seed=seed)
                rows.append((split, name, str(metric), *found, int(defined.sum())))
    return rows


def _with_interval(value: float, above: Draws, below: Draws) -> tuple[float, float, float]:
    """A ratio with the interval of its draws; a draw without anything to divide by tells nothing."""
    filled = below > 0
    return float(value), *percentile_interval(above[filled] / below[filled])
