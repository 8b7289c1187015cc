"""Does importance follow ground-truth process supervision, in right and in wrong completions (docs/METHOD.md §7.6)?

OAR asks what moves the model's own answer. In a right completion that is what a teacher would praise; in a wrong one the
model's answer is the wrong one, and a teacher would point at the first wrong token.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.signals.examined import Examined, gap_rows
from oar.analysis.signals.recall import COLUMNS, differences, split_averages
from oar.statistics.attribution import Floats, auc, spearman

CORRECT_LESS_WRONG = "correct - wrong"
CORRELATION, MASS, CAUSAL_WEIGHT, NATS = "causal_spearman", "causal_mass", "causal_weight", "nats"
ERROR_WEIGHT, BEFORE_WEIGHT, AFTER_WEIGHT = "error_weight", "before_weight", "after_weight"
SUPERVISION = "supervision_auc"  # a rank correlation with a single marked token is bounded far below 1; this is not


def proxy_mismatch(examined: Examined, *, pairs: Sequence[Sequence[str]], seed: int) -> pd.DataFrame:
    """COLUMNS: a row per split, signal and metric; the split `correct - wrong` is the gap between the two means.

    `n`: completions a metric is defined for. A pair (a, b) adds a signal `a - b`, taken completion by completion.
    """
    truth = examined.truth
    metrics = {
        name: pd.DataFrame(
            [
                completion_mismatch(*completion)
                for completion in zip(
                    values, examined.weights[name], truth.causal, truth.error, truth.correct, strict=True
                )
            ]
        )
        for name, values in examined.importance.items()
    }
    metrics = differences(metrics, pairs)
    rows = split_averages(metrics, truth.splits(), examined.problems, seed=seed)
    rows += gap_rows(metrics, truth.correct, examined.problems, CORRECT_LESS_WRONG, seed=seed)
    return pd.DataFrame(rows, columns=COLUMNS)


def completion_mismatch(
    importance: Floats, weights: Floats, causal: NDArray[np.bool_], error: NDArray[np.bool_], correct: bool
) -> dict[str, float]:
    """All metrics of one completion, from (T,) each; NaN where one is not defined.

    Rank correlation of the importance with the causal tokens. AUC of it against what a supervisor of the process would mark:
    the causal tokens of a right completion, the first wrong token of a wrong one. The share of the importance on causal tokens;
    the sum of it. The mean weight of causal tokens (GRPO: 1). Of a wrong completion with a located error the weight of the
    first wrong token, and the mean weight of the causal tokens before and after it: blame on what was right, and on what
    followed from the error.
    """
    total = importance.sum()
    marked = causal if correct else error
    place = int(error.argmax()) if error.any() else None
    before = causal & (np.arange(causal.size) < place) if place is not None else np.zeros_like(causal)
    after = causal & (np.arange(causal.size) > place) if place is not None else np.zeros_like(causal)
    return {
        CORRELATION: spearman(importance, causal.astype(float)),
        SUPERVISION: auc(importance, marked),
        MASS: float(importance[causal].sum() / total) if total > 0 else np.nan,
        NATS: float(total),
        CAUSAL_WEIGHT: _mean(weights[causal]),
        ERROR_WEIGHT: _mean(weights[error]),
        BEFORE_WEIGHT: _mean(weights[before]),
        AFTER_WEIGHT: _mean(weights[after]),
    }


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else np.nan
