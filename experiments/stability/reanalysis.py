"""A sweep from runs.csv, which has every run's accuracy, and the ends of the bootstrap in levels.csv."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.stability.levels import Level, Levels, columns
from experiments.stability.page import read_levels, read_table, write_sweep
from oar.analysis.arms import METRICS, committed
from oar.analysis.claims.claims import Claim, load_claims
from oar.analysis.claims.ledger import judged
from oar.analysis.claims.page import read_ledger
from oar.analysis.reports.page import write_csv
from oar.common.errors import DataError
from oar.evaluation.evaluate import MEAN
from oar.runs.folder import full_steps
from oar.statistics.intervals import PERCENT


def judge_sweep(folder: Path, provenance: Mapping[str, Any]) -> None:
    """levels.csv and claims.csv, then all that is made of the tables."""
    about = provenance["sweep"]
    levels = _levels(read_levels(folder, about), read_table(folder / "runs.csv", about))
    write_csv(levels.table.reset_index(), folder / "levels.csv")
    if about["claims"]:
        known = {one.id: one for one in load_claims()}
        ledger = read_ledger(folder / "claims.csv")
        rows = [_judged(row, known[row["claim_id"]], levels) for row in ledger.to_dict("records")]
        write_csv(pd.DataFrame(rows)[ledger.columns].astype({"problems": "Int64"}), folder / "claims.csv")
    write_sweep(folder, provenance)


def _levels(found: Levels, runs: pd.DataFrame) -> Levels:
    rows = []
    for level, before in zip(found.table.index, found.table.to_dict("records"), strict=True):
        row: dict[Any, Any] = dict(before)
        for metric in METRICS:
            own, other = (_by_seed(runs, found.keys, one, f"{metric} {MEAN}") for one in (level, found.reference))
            row |= _columns(metric, row, own, (0.0, PERCENT))
            if level != found.reference:
                row |= _columns(f"difference {metric}", row, (own - other).dropna(), (-PERCENT, PERCENT))
        rows.append(row)
    table = pd.DataFrame(rows, index=found.table.index).astype({"collapse_step": "Int64"})
    return Levels(found.keys, found.reference, table)


def _by_seed(runs: pd.DataFrame, keys: list[str], level: Level, column: str) -> "pd.Series[float]":
    chosen = runs[(runs[keys] == list(level)).all(axis=1)]
    return chosen.set_index("seed")[column].dropna()


def _columns(
    name: str, row: Mapping[Any, Any], by_seed: "pd.Series[float]", within: tuple[float, float]
) -> dict[str, Any]:
    if by_seed.empty:
        return {}
    ends = (row[f"{name} bootstrap low"], row[f"{name} bootstrap high"])
    return columns(name, committed(name, np.asarray(by_seed, np.float64), row[name], ends, within=within))


def _judged(row: Mapping[Any, Any], claim: Claim, levels: Levels) -> dict[str, Any]:
    """The verdict of today; a difference has the interval of its level, so that the page shows one."""
    found = dict(row)
    if claim.quantity == "difference":
        found |= _of_level(claim, row["metric"], levels)
    made = [(row["profile"], int(steps)) for steps in str(row["steps"]).split("; ")]
    return found | judged(claim, found, len(str(row["seeds"]).split(", ")), made, full_steps())


def _of_level(claim: Claim, metric: str, levels: Levels) -> dict[str, Any]:
    """A claim on two arms of which one is the reference."""
    one, other = (_level_of(settings, levels) for settings in claim.arms.values())
    if levels.reference not in (one, other):
        raise DataError(f"The claim {claim.id!r} is not about the reference level: make the page by its own command.")
    sign, level = (1, one) if other == levels.reference else (-1, other)
    cell, name = levels.table.loc[level], f"difference {metric}"
    low, high = sorted((sign * cell[f"{name} low"], sign * cell[f"{name} high"]))
    return {"value": sign * cell[name] + 0.0, "low": low, "high": high, "interval_over": cell[f"{name} interval over"]}


def _level_of(settings: Mapping[str, Any], levels: Levels) -> Level:
    return tuple(settings[key] for key in levels.keys)
