"""Completions for the dashboard's page: of every run the last that it kept, problems that several runs share before others."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.dashboard.runs import Line
from oar.analysis.reports.html import short
from oar.common.errors import DataError
from oar.learner.samples import Sample, pieces, read_samples
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES

INSPECTOR = "inspector/step_{:06d}.html"


def kept_samples(
    runs: Sequence[Run], lines: Sequence[Line], count: int, folder: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """At most `count` completions of each run with their weights, those of one problem together; and notes on what is missing.

    folder: where the page will lie, for links to pages of the inspector.
    """
    found: dict[int, tuple[int, list[Sample]]] = {}
    notes = []
    for at, run in enumerate(runs):
        if (run.folder / SAMPLES).exists():
            try:
                found[at] = read_samples(run.folder, None)
            except DataError as error:
                notes.append(f"Completions of {run.folder.name} are left out: {error}")
    runs_with = Counter(prompt for _, samples in found.values() for prompt in {sample.prompt for sample in samples})
    rows = []
    for place, line in enumerate(lines):
        for at in line.runs:
            step, samples = found.get(at, (0, []))
            page = runs[at].folder / INSPECTOR.format(step)
            link = Path(os.path.relpath(page, folder)).as_posix() if page.exists() else None
            for sample in sorted(samples, key=lambda one: -runs_with[one.prompt])[:count]:
                rows.append(_row(sample) | {"line": place, "run": runs[at].folder.name, "step": step, "link": link})
    return sorted(rows, key=lambda row: (-runs_with[row["prompt"]], row["problem"], row["line"])), notes


def _row(sample: Sample) -> dict[str, Any]:
    return {
        "problem": sample.problem,
        "prompt": sample.prompt,
        "gold": sample.gold,
        "reward": short(sample.reward),
        "advantage": short(sample.advantage),
        "tokens": pieces(sample.tokens, sample.completion),
        "weights": [short(weight) for weight in sample.token_weights[: sample.reasoning_tokens]],
        "segments": sample.segments,
    }
