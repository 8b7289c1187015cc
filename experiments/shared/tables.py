"""Numbers read from tables, for pages that say them: `Tables(folder).number("recall/recall.csv", signal="oar_p", ...)`."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.reports.page import fixed
from oar.common.errors import DataError, did_you_mean
from oar.common.provenance import machines
from oar.statistics.intervals import CONFIDENCE


def existing(file: Path) -> Path:
    """The file itself; DataError where it is missing."""
    if not file.is_file():
        raise DataError(f"A number is asked of {file}, which is not there: measure it, or correct what asks for it.")
    return file


class Tables:
    """What can be asked of the tables of a folder: a file of it, a column, and the rows by what stands in other columns."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._read = cache(lambda file: pd.read_csv(existing(results / file)))

    def has(self, file: str, **where: Any) -> bool:
        """Whether the table is there, with rows that have each of these values."""
        return (self._results / file).is_file() and all(
            value in set(self._column(file, column)) for column, value in where.items()
        )

    def rows(self, file: str, columns: Sequence[str], where: Mapping[str, Any]) -> pd.DataFrame:
        """The rows that have these values; none of them blank in `columns`."""
        rows = self._read(file)
        for column in (*columns, *where):
            self._column(file, column)
        for column, value in where.items():
            wanted = value if isinstance(value, list) else [value]
            found = rows[rows[column].isin(wanted)]
            for absent in set(wanted) - set(found[column]):
                near = did_you_mean(str(absent), rows[column].astype(str))
                raise DataError(f"{file} has no row with {dict(where)}, for there is no {column} {absent}{near}.")
            rows = found
        if rows[list(columns)].isna().any(axis=None):
            raise DataError(
                f"{file} is blank in {', '.join(columns)} where {dict(where)}: ask for rows that hold a value."
            )
        return rows

    def number(self, file: str, column: str = "value", **where: Any) -> float:
        """What stands in the one row."""
        return float(self._row(file, [column], where)[column])

    def mean(self, file: str, column: str = "value", **where: Any) -> float:
        """The mean over rows, for example of seeds."""
        return float(self.rows(file, [column], where)[column].mean())

    def count(self, file: str, *columns: str, **where: Any) -> int:
        """How many different rows there are by these columns."""
        return len(self.rows(file, columns, where).drop_duplicates(list(columns)))

    def span(self, file: str, column: str = "value", *, by: Sequence[str] = (), digits: int = 1, **where: Any) -> str:
        """From the least to the largest row, or to the largest mean over the rows that are alike in the columns `by`."""
        rows = self.rows(file, [column, *by], where)
        values = rows.groupby(list(by))[column].mean() if by else rows[column]
        return " to ".join(dict.fromkeys([fixed(values.min(), digits), fixed(values.max(), digits)]))

    def correlation(self, file: str, one: str, other: str, **where: Any) -> float:
        """Spearman's rank correlation of two columns."""
        rows = self.rows(file, [one, other], where)
        return float(rows[one].rank().corr(rows[other].rank()))

    def estimate(self, file: str, column: str = "value", **where: Any) -> tuple[float, float, float]:
        """The value of the one row and the two ends of its interval."""
        columns = [column, *self._ends(file, column)]
        value, low, high = self._row(file, columns, where)[columns]
        return float(value), float(low), float(high)

    def completions(self, file: str, **where: Any) -> float:
        """Of how many completions the one row is; NaN where the table does not say."""
        return self.number(file, "n", **where) if "n" in self._read(file) else math.nan

    def interval(self, file: str, column: str = "value", *, digits: int = 2, **where: Any) -> str:
        """The value of the one row with its interval: `0.82 (0.76 to 0.87)`."""
        return "{} ({} to {})".format(*(fixed(value, digits) for value in self.estimate(file, column, **where)))

    def difference(self, file: str, column: str = "difference", *, than: str = "GRPO", **where: Any) -> str:
        """The difference of the one row in points: `1.5 points below GRPO (3.0 below to 0.1 above)`."""
        value, low, high = self.estimate(file, column, **where)
        least = fixed(abs(low)) if _side(low) == _side(high) else f"{fixed(abs(low))} {_side(low)}"
        return f"{fixed(abs(value))} points {_side(value)} {than} ({least} to {fixed(abs(high))} {_side(high)})"

    def apart(self, file: str, name: str, column: str = "difference", **where: Any) -> list[str]:
        """Of the rows with an interval those that leave 0 out of it, by what stands in the column `name`."""
        low, high = self._ends(file, column)
        rows = self.rows(file, [name], where)
        return [str(one) for one in rows[(rows[low] > 0) | (rows[high] < 0)][name]]

    def significant(self, file: str, name: str, p: str = "p_holm", **where: Any) -> list[str]:
        """The rows whose p is below one minus the confidence, by what stands in the column `name`."""
        rows = self.rows(file, [name, p], where)
        return [str(one) for one in rows[rows[p] < 1 - CONFIDENCE][name]]

    def provenance(self, folder: str, key: str) -> Any:
        """What a folder's provenance.json says under a key."""
        found = json.loads(existing(self._results / folder / "provenance.json").read_text(encoding="utf-8"))
        if key not in found:
            raise DataError(f"The provenance.json of {folder} has no {key}: correct what asks for it.")
        return found[key]

    def machines(self) -> dict[str, list[str]]:
        """GPU or processor: the folders that were measured with it, those within others too; of several: under each."""
        by_machine: dict[str, list[str]] = {}
        for file in sorted(self._results.rglob("provenance.json")):
            made = json.loads(file.read_text(encoding="utf-8"))
            pages = (made, *made.get("study", {}).get("beside", []))  # runs of earlier ones stand on this one too
            for machine in dict.fromkeys(name for one in pages for name in machines(one)):
                by_machine.setdefault(machine, []).append(file.parent.relative_to(self._results).as_posix())
        return dict(sorted(by_machine.items()))

    def _ends(self, file: str, column: str) -> tuple[str, str]:
        """The columns of a column's interval: its own, else the table's only one."""
        for low, high in ((f"{column} low", f"{column} high"), ("low", "high")):
            if low in self._read(file).columns:
                return low, high
        raise DataError(f"{file} has no interval of {column}.")

    def _row(self, file: str, columns: Sequence[str], where: Mapping[str, Any]) -> pd.Series:
        rows = self.rows(file, columns, where)
        if len(rows) != 1:
            raise DataError(f"{file} has {len(rows)} rows with {dict(where)}, but one is asked for: name more columns.")
        return rows.iloc[0]

    def _column(self, file: str, name: str) -> pd.Series:
        rows = self._read(file)
        if name not in rows.columns:
            raise DataError(f"{file} has no column {name}{did_you_mean(name, rows.columns)}.")
        return rows[name]


def _side(value: float) -> str:
    return "below" if value < 0 else "above"
