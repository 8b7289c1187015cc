"""The page of an experiment: question, what the paper says, what was run, tables, pictures, what follows, how to repeat it.

Every folder of results/ with such a page holds `<name>.md`, its tables, its pictures and `provenance.json`, and `make report`
reads them all.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oar.common.files import write_text_atomic

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
        rows = [f"| {key} | {_cell(self.provenance[key])} |" for key in shown if key in self.provenance]
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
                "## Provenance\n\n" + "\n".join(["|  |  |", "| --- | --- |", *rows]) + "\n",
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


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(dict.fromkeys(map(_cell, value)))
    return str(value)
