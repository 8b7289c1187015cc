"""What a finding says of a number, and whether the number of another model says so too. Pure."""

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from experiments.shared.tables import Tables
from oar.common.errors import ConfigError

HOLDS, FAILS, OPEN, NOT_SHOWN, NOT_MEASURED = (
    "holds",
    "does not hold",
    "cannot be told",
    "not shown before",
    "not measured",
)
VERDICTS = (HOLDS, FAILS, OPEN, NOT_SHOWN, NOT_MEASURED)
HERE, THERE = "embedded", "pretrained"
FEW = 10  # completions; a bootstrap over fewer says too little of how much they vary
COLUMNS = ["finding", "says", "model", "value", "low", "high", "completions", "bound", "side", "verdict"]


@dataclass
class Finding:
    """One number of the embedded model, the side of a bound on which it lies, and where the same number of another model is.

    where: `file`, and what stands in the other columns of its row; there: what differs of it in the other model's results.
    """

    says: str
    where: dict[str, Any]
    there: dict[str, Any] = field(default_factory=dict)
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise ConfigError(
                f"A finding must have one of above and below, but {self.says!r} has {self.above}, {self.below}."
            )
        if "file" not in self.where:
            raise ConfigError(
                f"where must name the file that has the number, but that of {self.says!r} is {self.where}."
            )

    def verdict(self, low: float, high: float, completions: float = math.nan) -> str:
        """HOLDS where the whole interval is on the right side of the bound, FAILS where it is on the other one, else OPEN.

        OPEN as well where it is of fewer than FEW completions; NaN: nobody knows of how many.
        """
        if completions < FEW:
            return OPEN
        if self.above is not None:
            return HOLDS if low > self.above else FAILS if high <= self.above else OPEN
        assert self.below is not None
        return HOLDS if high < self.below else FAILS if low >= self.below else OPEN


def judged(findings: dict[str, Finding], here: Tables, there: Tables) -> pd.DataFrame:
    """COLUMNS, two rows a finding: of the embedded model (HERE), then of the other (THERE), whose verdict is the finding's.

    A finding that the embedded model does not show for sure is no finding: NOT_SHOWN. Raises DataError for a row that is not
    there where its table is, with its condition.
    """
    rows = []
    for name, finding in findings.items():
        bound, side = (finding.above, "above") if finding.above is not None else (finding.below, "below")
        where = {**finding.where, **finding.there}
        found = *here.estimate(**finding.where), here.completions(**finding.where)
        other, verdict = (math.nan,) * 4, NOT_MEASURED
        # A program may have measured some of its conditions.
        if there.has(where["file"], **{name: where[name] for name in where if name == "condition"}):
            other = *there.estimate(**where), there.completions(**where)
            verdict = finding.verdict(*other[1:])
        own = finding.verdict(*found[1:])
        rows.append([name, finding.says, HERE, *found, bound, side, own])
        rows.append([name, finding.says, THERE, *other, bound, side, verdict if own == HOLDS else NOT_SHOWN])
    return pd.DataFrame(rows, columns=COLUMNS)
