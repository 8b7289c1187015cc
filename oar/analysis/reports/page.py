"""The page of an experiment: question, what the paper says, what was run, tables, pictures, what follows, how to repeat it;
and the tables of all pages, in Markdown.

Every folder of results/ with such a page holds `<name>.md`, its tables, its pictures and `provenance.json`, and `make report`
reads them all.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oar.common.files import atomic_path, write_text_atomic

if TYPE_CHECKING:  # the GPU check writes tables where there is no pandas
    import pandas as pd

OPENED, CLOSED = "<!-- what follows -->", "<!-- /what follows -->"  # what stands between them is written by people
UNWRITTEN = "Nobody has read these numbers yet."


@dataclass(frozen=True, slots=True)
class StudyPage:
    """What a page says, in Markdown.

    name: of the folder and the file; measured: tables and how to read them; pictures: file in the same folder to its caption;
    repeat: the one command that measures it again; provenance: `oar.common.provenance.collect_provenance` or
    `oar.launch.pool.joint_provenance`.
    """

    name: str
    title: str
    question: str
    paper: str
    ran: str
    measured: str
    pictures: Mapping[str, str]
    repeat: str
    provenance: Mapping[str, object]

    def markdown(self, follows: str) -> str:
        """The whole page, with what people concluded."""
        pictures = [f"![{caption}]({file})\n\n*{caption}*" for file, caption in self.pictures.items()]
        shown = ("command", "git_commit", "git_dirty", "versions", "config_hash", "cpu", "cores", "gpu", "started")
        rows = [[key, cell_text(self.provenance[key])] for key in shown if key in self.provenance]
        return "\n\n".join(
            [
                f"# {self.title}",
                f"**Question.** {self.question.strip()}",
                f"**What the paper says.** {self.paper.strip()}",
                f"**What was run.** {self.ran.strip()}",
                self.measured.strip(),
                *pictures,
                f"## What follows\n\n{OPENED}\n{follows.strip()}\n{CLOSED}",
                f"## How to repeat it\n\n```\n{self.repeat}\n```",
                f"## Provenance\n\n{table_lines(['', ''], rows)}\n",
            ]
        )


def write_study(page: StudyPage, folder: Path) -> Path:
    """Write `<name>.md` and `provenance.json` into `folder`, each atomically; returns the page.

    What people wrote under "What follows" stays. Tables and pictures are the caller's to write, before.
    """
    path = folder / f"{page.name}.md"
    write_text_atomic(path, page.markdown(conclusion_of(path)))
    write_text_atomic(folder / "provenance.json", json.dumps(page.provenance, indent=2, allow_nan=False) + "\n")
    return path


def conclusion_of(path: Path) -> str:
    """What people wrote between the markers of a page; a sentence that says so where nobody has."""
    found = re.search(f"{OPENED}\n(.*?)\n?{CLOSED}", path.read_text(), flags=re.DOTALL) if path.exists() else None
    return found[1] if found else UNWRITTEN


def cell_text(value: object) -> str:
    """A value of a provenance, for a cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(dict.fromkeys(map(cell_text, value)))
    return str(value)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def with_error(value: float, error: float | None, form: str = ".1f") -> str:
    """`69.4 ± 0.3`; a single seed has no error."""
    return f"{value:{form}}" + ("" if error is None or math.isnan(error) else f" ± {error:{form.removeprefix('+')}}")


def interval_text(low: float | None, high: float | None, form: str = "+.1f") -> str:
    """`[-0.3, +1.2]`; a blank where there is no interval."""
    return "" if low is None or math.isnan(low) else f"[{low:{form}}, {high:{form}}]"


def write_csv(table: "pd.DataFrame", path: Path) -> None:
    """The table, written atomically."""
    with atomic_path(path) as temporary:
        table.to_csv(temporary, index=False)


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
