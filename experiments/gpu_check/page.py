"""What the check found, as gpu_check.json for programs and gpu_check.md for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined  # torch brings it along

from experiments.gpu_check.findings import Finding
from experiments.gpu_check.registry import OPEN
from experiments.gpu_check.runner import Line
from oar.common.files import write_text_atomic

JSON, PAGE = "gpu_check.json", "gpu_check.md"
TEMPLATE = Path(__file__).with_name("page.md.j2")


def write(folder: Path, lines: Sequence[Line], origin: Mapping[str, Any], full: bool) -> None:
    """Both files; lines of parts that did not run this time come from an earlier check of the same size in `folder`."""
    file = folder / JSON
    earlier: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"full": None}
    rows: list[dict[str, Any]] = earlier["parts"] if earlier["full"] == full else []
    rows += [{**asdict(line), "commit": origin["git_commit"], "dirty": origin["git_dirty"]} for line in lines]
    content = {
        "full": full,
        "parts": list({row["name"]: row for row in rows}.values()),
        "open": [{"what": what, "how": how} for what, how in OPEN.items()],
        "provenance": dict(origin),
    }
    write_text_atomic(file, json.dumps(content, indent=1) + "\n")
    write_text_atomic(folder / PAGE, page(content))


def page(content: Mapping[str, Any]) -> str:
    """The content of gpu_check.json as Markdown."""
    # A bar or a line's end in a cell would break the table.
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda it: it.replace("|", "\\|").replace("\n", " ") if isinstance(it, str) else it,
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(content, measured=lambda row: Finding(**row).measured)
