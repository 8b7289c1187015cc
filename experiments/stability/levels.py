"""The levels of one or two settings that a sweep varies, compared: accuracy, difference from a reference level, diagnostics."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from experiments.stability.gathering import FINISHED, LAST, NOT_BEGUN, NULL, Gathered
from oar.analysis.arms import METRICS, accuracy_of, paired
from oar.common.errors import ConfigError, DataError
from oar.runs.folder import Run
from oar.statistics.intervals import Estimate

DIAGNOSTICS = (*LAST, "entropy_lowest")
Level = tuple[Any, ...]


@dataclass(frozen=True)
class Levels:
    """What `compare_levels` found.

    table: a row per level, indexed by the values of `keys`: `runs` that are known, `begun` and `finished` ones, `seeds` of
    these; per metric `avg@k` (percent) with its ENDS (oar.statistics.intervals.Estimate: `avg@k low`, `avg@k interval
    over`), and the same
    after `difference avg@k` (points, from `reference`, paired by seed; empty at the reference itself); the means of
    DIAGNOSTICS over finished runs; `collapsed`, how many runs, unfinished ones too, did, and `collapse_step`, of the earliest.
    """

    keys: list[str]
    reference: Level
    table: pd.DataFrame

    @property
    def values(self) -> list[list[Any]]:
        """Of each key its values: numbers sorted, names as the sweep has them."""
        found = [list(dict.fromkeys(self.table.index.get_level_values(key))) for key in self.keys]
        return [one if isinstance(one[0], str) else sorted(one) for one in found]

    @property
    def cells(self) -> dict[Level, dict[str, Any]]:
        """The rows of the table by level, in the order of `values`."""
        found = dict(zip(self.table.index, self.table.to_dict("records"), strict=True))
        return {level: found[level] for level in product(*self.values) if level in found}

    def label(self, level: Level) -> str:
        """A level in words: `tau 0.4, beta 2`."""
        return ", ".join(f"{short(key)} {value}" for key, value in zip(self.keys, level, strict=True))


def short(key: str) -> str:
    """`tau` of `gating.tau`, `gating` of `gating.name`."""
    return key.removesuffix(".name").rpartition(".")[2]


def compare_levels(
    gathered: Gathered,
    keys: Sequence[str],
    reference: Sequence[Any] | None,
    *,
    usual: Level | None = None,
) -> Levels:
    """Group the runs by `keys`, one or two settings that vary.

    `reference`: the values of the level that the others are held against. Where None: `usual` if it has a finished run, else the
    first that has.

    Raises ConfigError where the keys do not vary or the reference has no finished run, DataError where none has, runs of one
    level differ in something else, or two finished ones have the same seed.
    """
    unknown = [key for key in keys if key not in gathered.varying]
    if unknown or not 1 <= len(keys) <= 2:
        raise ConfigError(
            f"keys must be one or two settings that vary among these runs ({', '.join(gathered.varying) or 'none does'}), "
            f"but is {', '.join(keys) or 'empty'}."
        )
    known = gathered.runs.dropna(subset=list(keys))
    groups = {_plain(level): rows for level, rows in known.groupby(list(keys), sort=False)}
    arms = {level: _by_seed(gathered, level, rows, keys) for level, rows in groups.items()}
    measured = [level for level in groups if arms[level]]
    if not measured:
        raise DataError("No run has finished: there is nothing to compare yet.")
    # A column with a null or a name among its values is text, whatever was typed.
    texts = {tuple(map(str, level)): level for level in measured}
    typed = None if reference is None else tuple(NULL if value is None else str(value) for value in reference)
    against = texts.get(typed, typed) if typed is not None else usual if usual in measured else measured[0]
    if against not in measured:
        named = "; ".join(", ".join(map(str, level)) for level in measured)
        raise ConfigError(
            f"reference must be the values of {', '.join(keys)} at a level with a finished run ({named}), but is "
            f"{', '.join(map(str, against))}."
        )
    rows = []
    for level, found in groups.items():
        begun = int((found["state"] != NOT_BEGUN).sum())
        row: dict[str, Any] = {"runs": len(found), "begun": begun, "finished": len(arms[level])}
        row |= {"seeds": ", ".join(map(str, arms[level]))}
        for metric in METRICS:
            row |= _measured(metric, metric, [arms[level]])
            if level != against:
                row |= _measured(f"difference {metric}", metric, [arms[level], arms[against]])
        done = found[found["state"] == FINISHED]
        row |= {name: done[name].mean() for name in DIAGNOSTICS}
        collapses = found["collapse_step"].dropna()
        row |= {"collapsed": len(collapses), "collapse_step": collapses.min() if len(collapses) else None}
        rows.append(row)
    index = pd.MultiIndex.from_tuples(list(groups), names=list(keys))
    table = pd.DataFrame(rows, index=index).astype({"collapse_step": "Int64"})
    return Levels(list(keys), against, table)


def deciding_keys(gathered: Gathered) -> list[str]:
    """The first varying settings that tell every combination apart: gating.name, but not gating.boost that follows from it."""
    known = gathered.runs.dropna(subset=gathered.varying, how="all")
    chosen: list[str] = []
    for key in gathered.varying:
        if known.groupby(chosen, dropna=False)[key].nunique(dropna=False).gt(1).any() if chosen else True:
            chosen.append(key)
    return chosen


def _plain(level: Any) -> Level:
    """Python's own numbers, as they stand in a configuration."""
    return tuple(value.item() if hasattr(value, "item") else value for value in level)


def _by_seed(gathered: Gathered, level: Level, rows: pd.DataFrame, keys: Sequence[str]) -> dict[int, Run]:
    begun = rows[rows["state"] != NOT_BEGUN]
    mixed = [key for key in gathered.varying if key not in keys and begun[key].nunique(dropna=False) > 1]
    where = ", ".join(f"{key}={value}" for key, value in zip(keys, level, strict=True))
    if mixed:
        raise DataError(
            f"The runs at {where} differ in {', '.join(mixed)} too: name that in keys, or gather them apart."
        )
    done = rows[rows["state"] == FINISHED]
    twice = done[done.duplicated("seed", keep=False)]
    if len(twice):
        raise DataError(f"{' and '.join(twice['run'])} are the same run ({where}, same seed): gather one of them.")
    return {int(row["seed"]): gathered.finished[row["run"]] for row in done.sort_values("seed").to_dict("records")}


def _measured(name: str, metric: str, by_arm: Sequence[dict[int, Run]]) -> dict[str, Any]:
    """Accuracy of the one arm, or first minus second, at the seeds that all arms have; nothing where they have none."""
    arms = paired(by_arm)
    if not arms[0]:
        return {}
    found = accuracy_of(metric, arms)
    return columns(name, found.first() if len(arms) == 1 else found.difference())


def columns(name: str, found: Estimate) -> dict[str, Any]:
    """What the table of `Levels` holds of an estimate: ENDS after its name."""
    return {name: found.value} | {f"{name} {end.replace('_', ' ')}": value for end, value in found.ends().items()}
