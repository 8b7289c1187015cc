"""What the pages of benchmarks share: goals beside what was measured, tables, the machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GOAL_HEADER = ["", "key", "to compare", "goal", "measured", "reached"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one of a benchmark's numbers; `compared`: what it is to be read against; form: how both are written."""

    key: str
    what: str
    compared: str
    bound: float
    at_least: bool = False
    form: str = ".2f"

    def row(self, value: float | None) -> list[str]:
        """Its line in the table: the difference stands there where the bound is missed."""
        if value is None:
            measured, missed = "", "not measured"
        else:
            measured, over = f"{value:{self.form}}", (self.bound - value) if self.at_least else (value - self.bound)
            missed = f"missed by {over:{self.form}}" if over > 0 else "yes"
        bound = f"{'>=' if self.at_least else '<='} {self.bound:g}"
        return [self.what, f"`{self.key}`", self.compared, bound, measured, missed]


def machine(provenance: Mapping[str, Any]) -> dict[str, str]:
    """{"machine": what measured, in words}, of `oar.common.provenance.collect_provenance`."""
    versions = provenance["versions"]
    device = provenance["gpu"] or provenance["cpu"]
    return {"machine": f"{device}, {provenance['cores']} logical cores, torch {versions['torch']}"}


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])
