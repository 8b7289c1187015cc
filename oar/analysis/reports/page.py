"""Pages: a template filled with what was measured, and the tables of Markdown in it.

Every folder of results/ with a page holds `<name>.md`, its tables, its pictures and `provenance.json`. The page's template
stands beside the code of its experiment and extends `oar/analysis/reports/page.md.j2`, whose blocks every page has in the same
order. Templates have the globals `table(header, rows)` and `picture(file, caption)`, and the filters `table` and
`records` of a DataFrame, `with_error`, `interval`, `fixed`, `label`, `listed` and `cell`:

    {{ row.value | with_error(row.error) }} {{ row.low | interval(row.high) }}    69.4 ± 0.3 [-0.3, +1.2]
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from oar.analysis.reports.methods import label, listed
from oar.common.errors import DataError
from oar.common.files import atomic_path, write_text_atomic
from oar.common.provenance import ROOT

if TYPE_CHECKING:  # the GPU check writes tables where there is no pandas
    import pandas as pd

PAGE = Path(__file__).with_name("page.md.j2")
OPENED, CLOSED = "<!-- what follows -->", "<!-- /what follows -->"  # what stands between them is written by people
UNWRITTEN = "Nobody has read these numbers yet."


def write_page(path: Path, template: Path, provenance: Mapping[str, Any], **values: Any) -> Path:
    """Write the page `path` and provenance.json beside it, each atomically; returns `path`.

    The template gets `values`, `provenance` and `follows`: what people wrote under "What follows" stays. Tables and pictures
    are the caller's to write, before. Raises DataError as `rendered` does.
    """
    text = rendered(
        template, provenance=provenance, follows=f"{OPENED}\n{conclusion_of(path).strip()}\n{CLOSED}", **values
    )
    write_text_atomic(path, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    write_text_atomic(path.parent / "provenance.json", json.dumps(provenance, indent=2, allow_nan=False) + "\n")
    return path


def rendered(template: Path, **values: Any) -> str:
    """The template filled with `values`; in one of HTML they are escaped.

    It names others, which it extends or includes, by their path in the repository. Raises DataError where one of them is not
    there or is none, or names what has no value.
    """
    page = Environment(
        loader=FileSystemLoader([template.parent, ROOT]),
        autoescape=".html" in template.suffixes,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page.globals |= {"table": table_lines, "picture": picture}
    page.filters |= {"table": frame_table, "with_error": with_error, "interval": interval_text, "cell": cell_text}
    page.filters |= {"records": records, "fixed": fixed, "label": label, "listed": listed}
    try:
        return page.get_template(template.name).render(**values)
    except TemplateError as error:
        raise DataError(f"{template} cannot be filled in ({error}): correct it.") from error


def conclusion_of(path: Path) -> str:
    """What people wrote between the markers of a page; a sentence that says so where nobody has."""
    found = re.search(f"{OPENED}\n(.*?)\n?{CLOSED}", path.read_text(), flags=re.DOTALL) if path.exists() else None
    return found[1] if found else UNWRITTEN


def with_conclusion(page: str, text: str) -> str:
    """The page with `text` between its markers, in place of what stood there. Raises DataError where it has no markers."""
    before, opened, rest = page.partition(OPENED)
    _, closed, after = rest.partition(CLOSED)
    if not (opened and closed):
        raise DataError(f"A page must have {OPENED} and, behind it, {CLOSED}, but has not: write it anew.")
    return f"{before}{OPENED}\n{text}\n{CLOSED}{after}"


def table_lines(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown."""
    titles = list(header)
    lines: list[Iterable[object]] = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def frame_table(frame: "pd.DataFrame") -> str:
    """A table of Markdown; what is missing is blank."""
    return table_lines(frame.columns, frame.astype(object).where(frame.notna(), "").to_numpy().tolist())


def records(frame: "pd.DataFrame") -> list[dict[Any, Any]]:
    """The rows; what is missing is None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def picture(file: str, caption: str) -> str:
    """A picture of the page's folder, and its caption below."""
    return f"![{caption}]({file})\n\n*{caption}*"


def with_error(value: float, error: float | None, form: str = ".1f") -> str:
    """`69.4 ± 0.3`; a single seed has no error."""
    return f"{value:{form}}" + ("" if error is None or math.isnan(error) else f" ± {error:{form.removeprefix('+')}}")


def interval_text(low: float | None, high: float | None, form: str = "+.1f") -> str:
    """`[-0.3, +1.2]`; a blank where there is no interval."""
    return "" if low is None or math.isnan(low) else f"[{low:{form}}, {high:{form}}]"


def fixed(value: float, digits: int = 1) -> str:
    """With this many digits after the point, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def cell_text(value: object) -> str:
    """A value of a provenance, for a cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(dict.fromkeys(map(cell_text, value)))
    return str(value)


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
