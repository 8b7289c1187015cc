"""From token signals and ground truth to one tidy table: oracle recall (docs/METHOD.md §7.2, §7.6, §7.8).

Metrics are taken per completion and averaged over completions; intervals resample problems, since completions of one problem
are not independent.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.common.errors import DataError
from oar.statistics.attribution import (
    BINS,
    Floats,
    auc,
    calibration_counts,
    calibration_error,
    calibration_shares,
    gate_scores,
    recall_at,
    recall_at_top_fifth,
    recall_at_truth,
    spearman,
    top_fifth_overlap,
)
from oar.statistics.intervals import CONFIDENCE, grouped_interval, resampled_sums

COLUMNS = ["split", "signal", "metric", "value", "low", "high", "n"]
Row = tuple[str, str, str, float, float, float, int]  # of these columns
ALL, CORRECT, WRONG = "all", "correct", "wrong"
AUC, RECALL, RECALL_FIFTH = "causal_auc", "causal_recall", "causal_recall_top_fifth"
CALIBRATION, SHARE = "calibration_error", "causal_share"
ERROR_FIFTH, ERROR_PERCENTILE = "error_top_fifth", "error_percentile"
SPEARMAN, OVERLAP = "spearman", "top_fifth_overlap"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of N completions, each with its own number T of reasoning tokens.

    problems (N,): whose completion; correct (N,); causal: for each completion (T,) whether a token carries the computation;
    error: for each (T,) True at the first wrong token, all False where the completion is right or the token not located.
    """

    problems: Sequence[str]
    correct: NDArray[np.bool_]
    causal: Sequence[NDArray[np.bool_]]
    error: Sequence[NDArray[np.bool_]]

    def splits(self) -> dict[str, NDArray[np.bool_]]:
        """Which completions (N,) are looked at together."""
        return {ALL: np.ones_like(self.correct), CORRECT: self.correct, WRONG: ~self.correct}

    def facts(self) -> dict[str, float]:
        """What every metric is to be read against: how many completions and errors, how long, how much is causal."""
        return {
            "completions": len(self.problems),
            "problems": len(set(self.problems)),
            "correct": int(self.correct.sum()),
            "errors_located": sum(bool(mark.any()) for mark in self.error),
            "reasoning_tokens": float(np.mean([mark.size for mark in self.causal])),
            "causal_share": float(np.mean([mark.mean() for mark in self.causal])),
        }


def recall_table(
    signals: Mapping[str, Sequence[Floats]],
    truth: Truth,
    *,
    reference: str,
    pairs: Sequence[Sequence[str]],
    k: Sequence[int],
    seed: int,
) -> pd.DataFrame:
    """COLUMNS; a row per split (all, correct, wrong completions), signal and metric; `n` completions it is defined for.

    signals: name to the importance of each completion's reasoning tokens, (T,) each; `reference` names the one that the
    others are compared with by rank; `k`: numbers of tokens for recall@k. A pair (a, b) adds a signal `a - b`: the
    differences of the two, completion by completion, so that what both have in common does not widen the interval. What
    is defined for no completion has no row. The parts of the calibration (`causal_share_0.0` for scores from 0 to 0.1, ...)
    count tokens: their n is tokens. Raises DataError for a reference or a pair that is not among the signals.
    """
    if reference not in signals:
        raise unknown_signal(reference, signals)
    splits, problems = truth.splits(), np.asarray(truth.problems)
    metrics = {name: _metrics(values, signals[reference], truth, k) for name, values in signals.items()}
    rows = split_averages(differences(metrics, pairs), splits, problems, seed=seed)
    for name, values in signals.items():
        counts, scored = _calibration(values, truth)
        for split, chosen in splits.items():
            some = chosen & scored
            rows += [(split, name, *row) for row in _calibration_rows(counts[some], problems[some], seed=seed)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    # Where a wrong completion goes wrong is asked of wrong ones only.
    asked = (table["split"] == WRONG) | ~table["metric"].isin([ERROR_FIFTH, ERROR_PERCENTILE])
    return table[asked].reset_index(drop=True)


def _metrics(values: Sequence[Floats], reference: Sequence[Floats], truth: Truth, k: Sequence[int]) -> pd.DataFrame:
    """A row per completion, a column per metric."""
    completions = zip(values, reference, truth.causal, truth.error, strict=True)
    return pd.DataFrame([completion_metrics(*completion, k=k) for completion in completions])


def completion_metrics(
    signal: Floats, reference: Floats, causal: NDArray[np.bool_], error: NDArray[np.bool_], *, k: Sequence[int]
) -> dict[str, float]:
    """All metrics of one completion; NaN where one is not defined."""
    return {
        AUC: auc(signal, causal),
        RECALL: recall_at_truth(signal, causal),
        RECALL_FIFTH: recall_at_top_fifth(signal, causal),
        **{f"{RECALL}@{count}": recall_at(signal, causal, count) for count in k},
        ERROR_FIFTH: recall_at_top_fifth(signal, error),
        ERROR_PERCENTILE: auc(signal, error),
        SPEARMAN: spearman(signal, reference),
        OVERLAP: top_fifth_overlap(signal, reference),
    }


def split_averages(
    metrics: Mapping[str, pd.DataFrame],
    splits: Mapping[str, NDArray[np.bool_]],
    problems: NDArray[np.str_],
    *,
    seed: int,
) -> list[Row]:
    """Rows of COLUMNS: of each signal and split the mean of every metric over the completions it is defined for.

    metrics: by signal a frame of N completions with a column per metric, NaN where it is not defined; splits: by name which
    completions, (N,); problems (N,). Intervals resample problems. What is defined for no completion has no row.
    """
    return [
        (split, name, *row)
        for name, measured in metrics.items()
        for split, chosen in splits.items()
        for row in averages(measured[chosen], problems[chosen], seed=seed)
    ]


def differences(metrics: Mapping[str, pd.DataFrame], pairs: Sequence[Sequence[str]]) -> dict[str, pd.DataFrame]:
    """The frames of signals, and for each pair (a, b) one named `a - b`: completion by completion.

    Raises DataError for a pair of unknown signals.
    """
    for name in chain.from_iterable(pairs):
        if name not in metrics:
            raise unknown_signal(name, metrics)
    return {**metrics, **{f"{a} - {b}": metrics[a] - metrics[b] for a, b in pairs}}


def unknown_signal(name: str, signals: Iterable[str]) -> DataError:
    """To be raised where `name` is none of them."""
    return DataError(f"{name!r} must be one of the signals ({', '.join(signals)}) to be compared with.")


def averages(
    metrics: pd.DataFrame, problems: NDArray[np.str_], *, seed: int
) -> list[tuple[str, float, float, float, int]]:
    """Of each metric (a column, a row per completion) its name, mean, interval over problems, and how many define it."""
    rows: list[tuple[str, float, float, float, int]] = []
    for metric, column in metrics.items():
        defined = column.notna().to_numpy()
        if defined.any():
            values = column[defined].to_numpy()
            low, high = grouped_interval(values, problems[defined], seed=seed)
            rows.append((str(metric), float(values.mean()), low, high, len(values)))
    return rows


def _calibration(values: Sequence[Floats], truth: Truth) -> tuple[Floats, NDArray[np.bool_]]:
    """Counts (N, 3, bins), and which completions have scores at all (N,)."""
    counts, scored = np.zeros((len(values), 3, BINS)), np.zeros(len(values), dtype=bool)
    for row, (signal, causal) in enumerate(zip(values, truth.causal, strict=True)):
        scores = gate_scores(signal)
        if scores is not None:
            counts[row], scored[row] = calibration_counts(scores, causal), True
    return counts, scored


def _calibration_rows(
    counts: Floats, problems: NDArray[np.str_], *, seed: int
) -> list[tuple[str, float, float, float, int]]:
    """The calibration error and the share of causal tokens in each part of the score, over all tokens together."""
    if not len(counts):
        return []
    total, drawn = counts.sum(axis=0), resampled_sums(counts, problems, seed=seed)
    edges = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(calibration_error(drawn), edges)
    rows = [(CALIBRATION, float(calibration_error(total)), float(low), float(high), len(counts))]
    shares, drawn_shares = calibration_shares(total), calibration_shares(drawn)
    for part in np.flatnonzero(total[0]):
        low, high = np.nanquantile(drawn_shares[:, part], edges)  # a draw may leave a part empty
        rows.append((f"{SHARE}_{part / BINS:.1f}", float(shares[part]), float(low), float(high), int(total[0, part])))
    return rows
