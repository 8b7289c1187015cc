"""What the check found, as gpu_check.json for programs and gpu_check.md for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.gpu_check.findings import Finding
from experiments.gpu_check.registry import OPEN
from experiments.gpu_check.runner import Line
from oar.analysis.reports.page import table_lines
from oar.common.files import write_text_atomic

JSON, PAGE = "gpu_check.json", "gpu_check.md"


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
    origin, parts = content["provenance"], content["parts"]
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items() if version)
    title, about = "# GPU check", "Each part ran in a process of its own, with a time limit of its own."
    if not content["full"]:
        title += ", small, without a GPU"
        about = "The parts ran at a hundredth of their size on a CPU: this shows that they run, and measures nothing."
    about += f" Machine: {origin['gpu'] or origin['cpu']}, driver {origin['driver'] or 'none'}. {versions}."
    verdicts = []
    for part in parts:
        commit = (part["commit"] or "no git")[:7] + " and changes" * bool(part["dirty"])
        seconds, date = f"{part['seconds']:.0f} of {part['limit_s']:.0f}", part["date"][:16].replace("T", " ")
        verdicts.append([part["name"], part["verdict"], seconds, part["message"], f"{commit}, {date}"])
    blocks = [title, f"{about} Command: `{origin['command']}`."]
    blocks.append(_table(["part", "verdict", "seconds", "", "commit, date"], verdicts))
    for part in parts:
        blocks += [f"## {part['name']}", part["what"]]
        found = [Finding(**row) for row in part["findings"]]
        rows = [[one.name, one.measured, one.expected, _HOLDS[one.holds]] for one in found]
        blocks += [_table(["number", "measured", "expected", "holds"], rows)] if rows else []
    blocks += ["## What one GPU cannot tell", *(f"- **{one['what']}.** {one['how']}" for one in content["open"])]
    return "\n\n".join(blocks) + "\n"


_HOLDS = {None: "", True: "yes", False: "**no**"}


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A bar or a line's end in a cell would break the table."""
    return table_lines(header, [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows])
