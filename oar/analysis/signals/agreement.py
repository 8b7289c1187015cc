"""How well a cheap signal stands in for exact OAR-P, and from completions to one tidy table (docs/METHOD.md §9).

Agreement is taken per completion and averaged over completions; intervals resample problems. Pure numpy.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from oar.analysis.signals.recall import ALL, CORRECT, OVERLAP, SPEARMAN, WRONG, differences, split_averages
from oar.statistics.attribution import spearman, top_fifth, top_fifth_overlap, top_k_probability

Completions = Sequence[ArrayLike]  # (T,) for each of N
COLUMNS = ["condition", "split", "signal", "metric", "value", "low", "high", "n"]
WEIGHTS, MASS = "weights_pearson", "mass_in_top_fifth"
SECONDS, FORWARD, BACKWARD = "seconds", "forward_tokens", "backward_tokens"  # all per completion
AGREEMENT, COSTS = (SPEARMAN, OVERLAP, WEIGHTS, MASS), (SECONDS, FORWARD, BACKWARD)


def agreement(
    signal: ArrayLike, reference: ArrayLike, weights: ArrayLike, reference_weights: ArrayLike
) -> dict[str, float]:
    """Of one completion: importance (T,) of a signal and of the reference, and the gated weights (T,) of both.

    Rank correlation; shared top fifth; Pearson correlation of the weights; and the share of the reference's importance that
    lies in the signal's top fifth. Where the reference is constant there is nothing to agree with: NaN.
    """
    ours, theirs = np.asarray(signal, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    varies = bool(np.ptp(theirs) > 0)
    found = top_k_probability(ours, top_fifth(ours.size)) @ theirs
    return {
        SPEARMAN: spearman(ours, theirs),
        OVERLAP: top_fifth_overlap(ours, theirs) if varies else np.nan,
        WEIGHTS: pearson(weights, reference_weights),
        MASS: float(found / theirs.sum()) if varies else np.nan,
    }


def agreements(
    signal: Completions, reference: Completions, weights: Completions, reference_weights: Completions
) -> pd.DataFrame:
    """`agreement` of N completions: a row for each, a column for each of AGREEMENT."""
    return pd.DataFrame([agreement(*each) for each in zip(signal, reference, weights, reference_weights, strict=True)])


def pearson(signal: ArrayLike, reference: ArrayLike) -> float:
    """Linear correlation of (T,) and (T,): 0 for a constant signal, NaN where the reference is constant."""
    ours, theirs = np.asarray(signal, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if not np.ptp(theirs) > 0:
        return np.nan
    return float(np.corrcoef(ours, theirs)[0, 1]) if np.ptp(ours) > 0 else 0.0


def agreement_between(draws: ArrayLike) -> float:
    """Mean rank correlation over all pairs of two or more draws of the same signal, (draws, T)."""
    return float(np.mean([spearman(one, other) for one, other in combinations(np.asarray(draws), 2)]))


def fidelity_table(measured: pd.DataFrame, *, pairs: Sequence[Sequence[str]], seed: int) -> pd.DataFrame:
    """COLUMNS, a row per condition, split (all, correct, wrong completions), signal and metric.

    measured: a row per condition, signal and completion with the columns `problem`, `correct`, AGREEMENT and COSTS; in each
    condition all signals have the same completions in the same order. A pair (a, b) adds a signal `a - b`: the differences
    completion by completion. Agreement has its interval and the number `n` of completions it is defined for, costs have
    neither a spread nor splits. What is defined for no completion has no row. Raises DataError for a pair of unknown signals.
    """
    rows: list[tuple[object, ...]] = []
    for condition, of_condition in measured.groupby("condition", sort=False):
        signals = {str(name): each.reset_index(drop=True) for name, each in of_condition.groupby("signal", sort=False)}
        for name, each in signals.items():
            for metric in COSTS:
                if each[metric].notna().any():
                    rows.append((condition, ALL, name, metric, float(each[metric].iloc[0]), np.nan, np.nan, len(each)))
        completions = next(iter(signals.values()))
        correct = completions["correct"].to_numpy(dtype=bool)
        agreed = differences({name: each[list(AGREEMENT)] for name, each in signals.items()}, pairs)
        splits = {ALL: np.ones_like(correct), CORRECT: correct, WRONG: ~correct}
        found = split_averages(agreed, splits, completions["problem"].to_numpy(), seed=seed)
        rows += [(condition, *row) for row in found]
    return pd.DataFrame(rows, columns=COLUMNS)


def condition_facts(measured: pd.DataFrame, reference: str) -> dict[str, dict[str, float]]:
    """By condition: completions, problems, how many are right, mean reasoning tokens."""
    completions = measured[measured["signal"] == reference].groupby("condition", sort=False)
    return {
        str(condition): {
            "drawn": int(each["drawn"].iloc[0]),
            "completions": len(each),
            "problems": each["problem"].nunique(),
            "correct": int(each["correct"].sum()),
            "reasoning_tokens": float(each["tokens"].mean()),
        }
        for condition, each in completions
    }
