"""What the check found, as gpu_check.json for programs and gpu_check.md for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu_check.findings import Finding
from experiments.gpu_check.registry import OPEN
from experiments.gpu_check.runner import Line
from oar.analysis.reports.page import table_lines
from oar.common.files import write_text_atomic

JSON, PAGE = "gpu_check.json", "gpu_check.md"


def write(folder: Path, lines: Sequence[Line], origin: Mapping[str, Any], full: bool) -> None:
    """Both files; lines of parts that did not run this time are taken over from the file that is there."""
    rows = [{**line.as_json(), "commit": origin["git_commit"], "dirty": origin["git_dirty"]} for line in lines]
    merged = {row["name"]: row for row in [*_earlier(folder, full), *rows]}
    content = {
        "full": full,
        "parts": list(merged.values()),
        "open": [{"what": what, "how": how} for what, how in OPEN],
        "provenance": dict(origin),
    }
    write_text_atomic(folder / JSON, json.dumps(content, indent=1) + "\n")
    write_text_atomic(folder / PAGE, page(content))


def page(content: Mapping[str, Any]) -> str:
    """The content of gpu_check.json as Markdown."""
    origin, parts = content["provenance"], content["parts"]
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items() if version)
    machine = origin["gpu"] or origin["cpu"]
    title = "# GPU check" if content["full"] else "# GPU check, small, without a GPU"
    about = (
        "Each part ran in a process of its own, with a time limit of its own."
        if content["full"]
        else "The parts ran at a hundredth of their size on a CPU: this shows that they run, and measures nothing."
    )
    rows = [
        [
            part["name"],
            part["verdict"],
            f"{part['seconds']:.0f} of {part['limit_s']:.0f}",
            part["message"],
            _commit(part),
        ]
        for part in parts
    ]
    blocks = [
        title,
        f"{about} Machine: {machine}, driver {origin['driver'] or 'none'}. {versions}. Command: `{origin['command']}`.",
        table_lines(["part", "verdict", "seconds", "", "commit, date"], _safe(rows)),
    ]
    for part in parts:
        blocks += [f"## {part['name']}", part["what"]]
        if part["findings"]:
            header = ["number", "measured", "expected", "holds"]
            blocks.append(table_lines(header, _safe([_row(Finding(**one)) for one in part["findings"]])))
    blocks += ["## What one GPU cannot tell", *(f"- **{one['what']}.** {one['how']}" for one in content["open"])]
    return "\n\n".join(blocks) + "\n"


def _row(finding: Finding) -> list[str]:
    value = f"{finding.value:.4g}" if isinstance(finding.value, float) else str(finding.value)
    holds = {None: "", True: "yes", False: "**no**"}[finding.holds]
    return [finding.name, f"{value} {finding.unit}".strip(), finding.expected, holds]


def _commit(part: Mapping[str, Any]) -> str:
    commit = (part["commit"] or "no git")[:7]
    return f"{commit}{' and changes' if part['dirty'] else ''}, {part['date'][:16].replace('T', ' ')}"


def _safe(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """A bar or a line's end in a cell would break the table."""
    return [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]


def _earlier(folder: Path, full: bool) -> list[dict[str, Any]]:
    """The lines of an earlier check of the same size."""
    path = folder / JSON
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    return list(content["parts"]) if content["full"] == full else []
