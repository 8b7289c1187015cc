"""What results/ holds: a page for each experiment, and a sentence for each folder that is not as it should be."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE, INSPECTOR = (
    "reference",
    "inspect_credit",
)  # what the paper says; pages of the credit inspector: not experiments


@dataclass(frozen=True, slots=True)
class ResultPage:
    """A page that an experiment wrote: Markdown, where its numbers come from (None: not recorded), its tables.

    name: of its folder below results/, by which conf/report.yaml names the experiment.
    """

    name: str
    folder: Path
    file: Path
    text: str
    provenance: Mapping[str, Any] | None
    tables: list[Path]

    @property
    def measured_by(self) -> str:
        """Command, commit and day, as far as the provenance has them."""
        made = self.provenance or {}
        commit = f"commit {str(made['git_commit'])[:9]}" if made.get("git_commit") else ""
        return ", ".join(filter(None, [str(made.get("command", "")), commit, str(made.get("started", ""))[:10]]))


def read_results(results: Path) -> tuple[list[ResultPage], list[str]]:
    """The pages of all folders by name, and of those in them, and what is wrong with any of them, in one sentence each."""
    pages, faults = [], []
    own = [path for path in results.iterdir() if path.is_dir() and not path.name.startswith(".")]
    folders = [path for path in own if path.name not in (REFERENCE, INSPECTOR)]
    below = {file.parent for folder in folders for file in folder.glob("*/*.md")}
    for folder in sorted([*folders, *below]):
        name = folder.relative_to(results).as_posix()
        files = sorted(folder.glob("*.md"))
        if len(files) != 1:
            found = f"{len(files)} of them: {', '.join(file.name for file in files)}" if files else "none"
            faults.append(f"{name} must hold one page (a file .md), but has {found}; it is left out.")
            continue
        try:
            text = files[0].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            faults.append(f"{name}/{files[0].name} cannot be read ({error}); it is left out.")
            continue
        tables = sorted(path for path in folder.iterdir() if path.suffix in (".csv", ".parquet"))
        if not tables:
            faults.append(f"{name} has no table beside its page (.csv or .parquet): its numbers cannot be checked.")
        provenance = _provenance(folder / "provenance.json")
        if provenance is None:
            faults.append(f"{name} does not say where its numbers come from: its provenance.json is none.")
        pages.append(ResultPage(name, folder, files[0], text, provenance, tables))
    return pages, faults


def _provenance(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
