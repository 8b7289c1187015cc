"""The dashboard without a network: run folders in, one HTML text out, with the panels of experiments/dashboard/panels.yaml.

The page is page.html.j2; beside it lies plotly's script, the same for every page.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from plotly import graph_objects as go

from experiments.dashboard.figures import curves_figure, stages_figure
from experiments.dashboard.lines import Line, lines_of, other_differences
from experiments.dashboard.logged import Logged
from experiments.dashboard.panels import SAMPLES, Panel, Section, metrics_of, sections_of
from experiments.dashboard.samples import last_samples
from experiments.dashboard.tables import stage_medians, stage_table, tier_tables
from oar.analysis.reports.page import rendered

TEMPLATE = Path(__file__).parent / "page.html.j2"


def dashboard_html(
    title: str,
    runs: Sequence[Logged],
    *,
    folder: Path,
    axis: str,
    points: int,
    samples: int,
    provenance: Mapping[str, object],
) -> str:
    """The page as text.

    folder: where it will lie, for links to the inspector's pages; axis: of curves, "step" or "time"; points: most of a curve;
    samples: of a run.
    """
    configs = [one.config for one in runs]
    lines, names = lines_of(configs), set(chain.from_iterable(one.metrics for one in runs))
    problems, notes = last_samples([one.run for one in runs], lines, samples, folder)
    if problems:
        names.add(SAMPLES)
    different = other_differences(configs)
    if different and len(lines) > 1:
        notes.insert(0, f"These runs do not differ in the method alone: {', '.join(different)}.")
    notes += _repeated(lines, runs)
    return rendered(
        TEMPLATE,
        title=title,
        notes=notes,
        lines=lines,
        runs=runs,
        sections=[_view(section, runs, lines, names, axis, points) for section in sections_of(names)],
        problems=problems,
        provenance=json.dumps(provenance, indent=1),
    )


def _repeated(lines: Sequence[Line], runs: Sequence[Logged]) -> Iterator[str]:
    """A sentence for each line that has several runs of a seed, as where one was run again."""
    for line in lines:
        own = [runs[at] for at in line.runs]
        if len({run.config["seed"] for run in own}) < len(own):
            named = ", ".join(str(run.run.folder) for run in own)
            yield f"{line.name} has more runs than seeds, and takes each for a seed: leave out all but one of a seed ({named})."


def _view(
    section: Section, runs: Sequence[Logged], lines: Sequence[Line], names: set[str], axis: str, points: int
) -> dict[str, Any]:
    """The section's name, its figures as HTML of plotly, its tables by title, and whether completions stand there."""
    figures: list[go.Figure] = []
    tables: dict[str, pd.DataFrame] = {}
    for panel in section.panels:
        metrics = metrics_of(panel, names)
        if panel.kind == "tiers":
            tables |= tier_tables(runs, lines, metrics)
        elif panel.kind == "stages":
            medians = stage_medians(runs, lines, metrics)
            figures.append(stages_figure(medians))
            tables["Seconds of a training step by stage, median over steps and seeds"] = stage_table(medians, lines)
    curves, zero = _told_apart([panel for panel in section.panels if panel.kind == "curve"], runs)
    if curves:
        figures.append(curves_figure(curves, lines, runs, axis=axis, points=points))
    name, how = section.name.replace(" ", "-"), {"full_html": False, "include_plotlyjs": False}
    return {
        "name": section.name,
        "figures": [figure.to_html(**how, div_id=f"{name}-{at}") for at, figure in enumerate(figures)],
        "tables": tables,
        "zero": zero,
        "samples": any(panel.kind == "samples" for panel in section.panels),
    }


def _told_apart(panels: Sequence[Panel], runs: Sequence[Logged]) -> tuple[list[Panel], list[Panel]]:
    """The panels to draw, and those whose metric is 0 at every step of every run."""
    zero = [
        panel
        for panel in panels
        if not any((run.metrics[panel.metric] != 0).any() for run in runs if panel.metric in run.metrics)
    ]
    return [panel for panel in panels if panel not in zero], zero
