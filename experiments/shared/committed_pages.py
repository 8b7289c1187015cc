"""A page of results/ with some of its sections written anew."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from oar.analysis.reports.page import cell_text, table_lines
from oar.common.errors import DataError
from oar.common.files import write_text_atomic

ANALYSIS = "analysis"


def replaced(text: str, start: str, body: str) -> str:
    """With `body` in place of what stands between `start` and the next heading or picture.

    Raises DataError where not exactly one part starts so.
    """
    pattern = rf"(?<=^{re.escape(start)}).*?(?=\n\n(?:## |!\[))"
    if len(re.findall(pattern, text, flags=re.DOTALL | re.MULTILINE)) != 1:
        raise DataError(f"The page must have one part that starts with {start.strip()!r}: make it by its own command.")
    return re.sub(pattern, lambda _: body, text, count=1, flags=re.DOTALL | re.MULTILINE)


def write_page(folder: Path, text: str, provenance: Mapping[str, object]) -> None:
    """The page of `folder` and provenance.json, each atomically; a last line of the page's provenance says what judged it."""
    (row,) = table_lines([], [[ANALYSIS, cell_text(provenance[ANALYSIS])]]).splitlines()[2:]
    text = re.sub(rf"^\| {ANALYSIS} \| .*\n", "", text, flags=re.MULTILINE)
    write_text_atomic(folder / f"{folder.resolve().name}.md", f"{text.rstrip()}\n{row}\n")
    write_text_atomic(folder / "provenance.json", json.dumps(provenance, indent=2, allow_nan=False) + "\n")


def read_page(folder: Path) -> str:
    """The page of `folder`. Raises DataError where there is none."""
    path = folder / f"{folder.resolve().name}.md"
    if not path.is_file():
        raise DataError(f"{path} is missing: make it by its own command.")
    return path.read_text(encoding="utf-8")
