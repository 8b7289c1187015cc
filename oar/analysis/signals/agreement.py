"""How well a cheap signal stands in for exact OAR-P, and from completions to one tidy table (docs/METHOD.md §9).

Agreement is taken per completion and averaged over completions; intervals resample problems. Pure numpy.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from oar.analysis.signals.recall import ALL, CORRECT, OVERLAP, SPEARMAN, WRONG
from oar.common.errors import DataError
from oar.statistics.attribution import spearman, top_fifth, top_fifth_overlap, top_k_probability
from oar.statistics.intervals import grouped_interval

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


def pearson(signal: ArrayLike, reference: ArrayLike) -> float:
    """Linear correlation of (T,) and (T,): 0 for a constant signal, NaN where the reference is constant."""
    ours, theirs = np.asarray(signal, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if not np.ptp(theirs) > 0:
        return np.nan
    return float(np.corrcoef(ours, theirs)[0, 1]) if np.ptp(ours) > 0 else 0.0


def agreement_between(draws: ArrayLike) -> float:
    """Mean rank correlation over all pairs of two or more draws of the same signal, (draws, T)."""
    return float(np.mean([spearman(one, other) for one, other in combinations(np.asarray(draws), 2)]))


def fidelity_table(measured: pd.DataFrame, *, pairs: Sequence[tuple[str, str]], seed: int) -> pd.DataFrame:
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
        for name, each in (signals | _differences(signals, pairs)).items():
            rows += [(condition, *row) for row in _averages(name, each, seed)]
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


def _differences(signals: Mapping[str, pd.DataFrame], pairs: Sequence[tuple[str, str]]) -> dict[str, pd.DataFrame]:
    found = {}
    for pair in pairs:
        for name in pair:
            if name not in signals:
                raise DataError(f"{name!r} must be one of the signals ({', '.join(signals)}) to be compared with.")
        ours, theirs = (signals[name] for name in pair)
        difference = ours.assign(**{metric: ours[metric] - theirs[metric] for metric in AGREEMENT})
        found[f"{pair[0]} - {pair[1]}"] = difference
    return found


def _averages(signal: str, completions: pd.DataFrame, seed: int) -> list[tuple[object, ...]]:
    correct = completions["correct"].astype(bool)
    rows: list[tuple[object, ...]] = []
    for split, chosen in {ALL: correct | True, CORRECT: correct, WRONG: ~correct}.items():
        for metric in AGREEMENT:
            some = completions[chosen & completions[metric].notna()]
            if len(some):
                interval = grouped_interval(some[metric], some["problem"].to_numpy(), seed=seed)
                rows.append((split, signal, metric, float(some[metric].mean()), *interval, len(some)))
    return rows
