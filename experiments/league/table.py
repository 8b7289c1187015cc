"""The lines of the league, from the tables of three experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from oar.analysis.reports.methods import method_order
from oar.analysis.signals.recall import ALL, AUC, ERROR_FIFTH, SPEARMAN, WRONG
from oar.analysis.thresholds import median_steps
from oar.common.errors import ConfigError, DataError

REFERENCE = "grpo"  # whose seconds a step are 1
REGIMES = ("one", "one_anywhere", "share", "all")  # of sheets
ALIGNED = "alignment_ratio"  # the metric of experiments.gradient_signal
OF_CLASSES, BEST_BY_CLASS = (
    "signal_share",
    "best_by_class",
)  # a metric of its kinds of tokens, and what these weigh at best
OF_TOKENS = {AUC: ALL, ERROR_FIFTH: WRONG, SPEARMAN: ALL}  # metric: which completions it is of
SECONDS = "seconds_ratio"
WAYS = ([*OF_TOKENS], [f"aligned_{one}" for one in REGIMES], [f"steps_{one}" for one in REGIMES])  # to look at a signal
COLUMNS = ["method", *(column for way in WAYS for column in way), SECONDS]
ARM = {"signals": "signal", "gradients": "arm", "costs": "arm"}  # by table the column with the method
PACE = "pace"  # what `_with_pace` adds to costs
KNOWN = {  # by table the columns that are read
    "signals": ["model", "split", "signal", "metric", "value"],
    "gradients": ["arm", "metric", "batch", "value", "condition"],
    "costs": ["condition", "arm", "rate", "seed", "reached", "steps", "seconds"],
}
Tables = Mapping[str, pd.DataFrame]


def read_tables(files: Mapping[str, Sequence[Path]], *, but: str | None = None, only: str | None = None) -> Tables:
    """By name of KNOWN the rows of all files, without those of the method `but`, or of `only` one.

    What two files tell of the same thing is the last one's. Raises DataError for a file that is not there or lacks a column.
    """
    found = {}
    for name, columns in KNOWN.items():
        read = [_read(file, columns) for file in files.get(name, ())]
        parts = [_with_pace(part) if name == "costs" else part for part in read if len(part)]
        rows = pd.concat(parts or [pd.DataFrame(columns=[*columns, PACE])], ignore_index=True)
        if but is not None:
            rows = rows[rows[ARM[name]] != but]
        found[name] = rows if only is None else rows[rows[ARM[name]] == only]
    return found


def _read(file: Path, columns: list[str]) -> pd.DataFrame:
    if not file.is_file():
        raise DataError(f"tables must name files that are there, but {file} is not: correct it or leave it out.")
    read = pd.read_csv(file)
    if missing := [column for column in columns if column not in read]:
        raise DataError(f"{file} must have the columns {', '.join(columns)}, but lacks {', '.join(missing)}.")
    return read[columns]


def by_ways(league: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of `league_table` the rows of signals that were looked at in several WAYS, and those in one alone."""
    looked = pd.concat([league[way].notna().any(axis=1) for way in WAYS], axis=1)
    several = looked.sum(axis=1) > 1
    return league[several], league[~several]


def _with_pace(costs: pd.DataFrame) -> pd.DataFrame:
    """With `pace`: seconds a step, over the reference's of the same regime, rate, seed and file; NaN without it.

    Machines are of one kind for one seed, not for all.
    """
    seconds, beside = costs["seconds"] / costs["steps"], [costs[key] for key in ("condition", "rate", "seed")]
    of_reference = seconds.where(costs["arm"] == REFERENCE).groupby(beside).transform("median")
    return costs.assign(**{PACE: seconds / of_reference})


def league_table(tables: Sequence[Tables], *, model: str, batch: int) -> pd.DataFrame:
    """COLUMNS, a row per method that any of the tables knows; what they do not know of it is NaN.

    signals: of experiments.signals, of `model`; gradients: of experiments.gradient_signal, at batches of `batch` problems; costs:
    steps.csv of experiments.study: `median_steps`, and the median of `pace`.
    """
    signals, gradients, costs = (pd.concat([each[name] for each in tables], ignore_index=True) for name in KNOWN)
    told = _last(signals[signals["model"] == model], ["signal", "split", "metric"])
    no_methods = {*gradients.loc[gradients["metric"] == OF_CLASSES, "arm"], BEST_BY_CLASS}
    aligned = gradients[(gradients["metric"] == ALIGNED) & (gradients["batch"] == batch)]
    aligned = aligned[~aligned["arm"].isin(no_methods)]
    if len(gradients) and batch not in set(gradients["batch"]):
        measured = ", ".join(f"{one:g}" for one in sorted(set(gradients["batch"].dropna())))
        raise ConfigError(f"batch must be one that gradients were compared at, {measured}, but is {batch}.")
    towards = _last(aligned, ["arm", "condition"])
    steps, pace = median_steps(costs), costs.groupby("arm")[PACE].median()
    names = {*costs["arm"], *aligned["arm"], *signals.loc[signals["model"] == model, "signal"]}
    rows = [
        [
            name,
            *(told.get((name, split, metric), np.nan) for metric, split in OF_TOKENS.items()),
            *(towards.get((name, regime), np.nan) for regime in REGIMES),
            *(steps.get((regime, name), np.nan) for regime in REGIMES),
            pace.get(name, np.nan),
        ]
        for name in sorted(names, key=method_order)
        if " - " not in name  # the difference of two signals
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _last(rows: pd.DataFrame, keys: list[str]) -> "pd.Series[float]":
    return rows.drop_duplicates(keys, keep="last").set_index(keys)["value"]
