"""The dashboard without a network: run folders in, one HTML text out that needs nothing beside it.

The page's own parts are oar/analysis/reports/web/dashboard.{html,css,js}; tokens are coloured by the inspector's style.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from experiments.dashboard.runs import (
    METHOD,
    SECONDS,
    SMOOTHING,
    TOTAL,
    Line,
    Panel,
    benchmark_of,
    lines_of,
    metrics_of,
    other_differences,
    sections_of,
)
from experiments.dashboard.samples import kept_samples
from oar.analysis.reports.figures import with_sampling
from oar.analysis.reports.html import short, whole_page
from oar.analysis.reports.methods import GRPO
from oar.common.errors import ConfigError
from oar.config.saved import saved_config
from oar.evaluation.evaluate import MEAN
from oar.evaluation.evaluate import METRICS as FINAL
from oar.runs.folder import Run
from oar.runs.tracking import METRICS, SAMPLES, TIMINGS
from oar.statistics.intervals import mean_and_standard_error

SETTINGS = "config.yaml"


@dataclass(frozen=True)
class Logged:
    """What a run has told so far, finished or not: its settings, and every metric under the name it has in W&B."""

    run: Run
    config: Mapping[str, Any]
    metrics: Mapping[str, pd.Series]  # by step, without undefined values

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.run.folder.resolve().name


def find_runs(places: Sequence[str | Path]) -> list[Path]:
    """Run folders among `places` and below them: a run, a table's folder with its cells, a sweep, or a folder of such.

    Raises ConfigError where there is none.
    """
    found = []
    for place in map(Path, places):
        if not place.is_dir():
            raise ConfigError(f"runs must name folders, but {place} is none: change runs.")
        for folder, below, files in os.walk(place):
            below.sort()
            if {SETTINGS, METRICS} <= set(files):
                found.append(Path(folder))
                below.clear()
    if not found:
        raise ConfigError(
            f"runs must hold folders of training runs ({SETTINGS} and {METRICS}), but {', '.join(map(str, places))} holds none: "
            "train one (`make train`), or change runs."
        )
    return list({folder.resolve(): folder for folder in found}.values())


def read_logged(folder: Path) -> Logged:
    """What the run in `folder` has logged. Raises DataError where it has logged nothing yet."""
    settings = saved_config(folder / SETTINGS)
    run = Run(folder, settings, {})
    frames = [run.metrics]
    if (folder / TIMINGS).exists():
        frames.append(run.timings.add_prefix(SECONDS))
    metrics = {str(name): frame[name].dropna() for frame in frames for name in frame}
    return Logged(run, OmegaConf.to_container(settings), metrics)  # type: ignore[arg-type]


def dashboard_html(
    title: str, runs: Sequence[Logged], *, folder: Path, points: int, samples: int, provenance: Mapping[str, object]
) -> str:
    """The page as text.

    folder: where it will lie, for links to the inspector's pages; points: most of a curve (see `averages`); samples: of a run.
    """
    data = page_data(title, runs, folder=folder, points=points, samples=samples)
    return whole_page("dashboard", title, data | {"provenance": provenance}, styles=["inspector"])


def page_data(title: str, runs: Sequence[Logged], *, folder: Path, points: int, samples: int) -> dict[str, Any]:
    """What the page's script is given."""
    configs = [one.config for one in runs]
    lines, names = lines_of(configs), set(chain.from_iterable(one.metrics for one in runs))
    kept, notes = kept_samples([one.run for one in runs], lines, samples, folder)
    if any((one.run.folder / SAMPLES).exists() for one in runs):
        names.add("samples")
    different = other_differences(configs)
    if different and len(lines) > 1:
        notes.insert(0, f"These runs do not differ in the method alone: {', '.join(different)}.")
    panel = PanelData(runs, lines, points)
    return {
        "title": title,
        "notes": notes,
        "smoothing": SMOOTHING,
        "lines": [_line(line, runs, panel) for line in lines],
        "sections": [
            {"name": section.name, "panels": [panel.of(one, names) for one in section.panels]}
            for section in sections_of(names)
        ],
        "samples": kept,
        "steps": panel.axes,
    }


def _line(line: Line, runs: Sequence[Logged], panel: "PanelData") -> dict[str, Any]:
    return {
        "name": line.name,
        "colour": line.colour,
        "marker": line.marker,
        "dash": line.dash,
        "runs": [
            {
                "name": runs[at].name,
                "seed": runs[at].config.get("seed"),
                "finished": (runs[at].run.folder / "evaluation.json").exists(),
                "steps": int(max((max(curve.index) for curve in runs[at].metrics.values() if len(curve)), default=0)),
                "time": panel.time(runs[at]),
            }
            for at in line.runs
        ],
    }


class PanelData:
    """The numbers of panels. Steps are kept once for all curves that have the same ones, in `axes`."""

    def __init__(self, runs: Sequence[Logged], lines: Sequence[Line], points: int) -> None:
        self.runs, self.lines, self.points = runs, lines, points
        self.axes: list[list[int]] = []

    def of(self, panel: Panel, names: set[str]) -> dict[str, Any]:
        """A panel with what is drawn in it."""
        shown = {"kind": panel.kind, "metric": panel.metric, "title": panel.title, "about": panel.about}
        match panel.kind:
            case "curve":
                return shown | {"curves": self.curves(panel.metric)}
            case "tiers":
                return shown | {"tables": [*self.final_tables(), self.curve_table(metrics_of(panel, names))]}
            case "stages":
                return shown | self.stages(metrics_of(panel, names))
            case _:
                return shown

    def curves(self, metric: str) -> list[dict[str, Any] | None]:
        """For each line its mean over seeds, at the steps that all of them have, and every seed; None where it has none."""
        found: list[dict[str, Any] | None] = []
        for line in self.lines:
            of_seeds = [(place, self.runs[at].metrics.get(metric)) for place, at in enumerate(line.runs)]
            known = [(place, curve) for place, curve in of_seeds if curve is not None and len(curve)]
            if not known:
                found.append(None)
                continue
            mean = pd.concat([curve for _, curve in known], axis=1, join="inner").mean(axis=1)
            seeds = [[place, *self._drawn(averages(curve, self.points))] for place, curve in known]
            found.append({"mean": self._drawn(averages(mean, self.points)), "seeds": seeds})
        return found

    def time(self, run: Logged) -> list[Any]:
        """Seconds since the start at the end of a step, evaluations left out."""
        total = run.metrics.get(TOTAL, pd.Series(dtype=float)).cumsum()
        return self._drawn(total.iloc[_spread(len(total), self.points)])

    def stages(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Medians over steps and seeds by stage, and of the whole step, as Table 1 has it."""
        medians = [[self._median(line, metric) for metric in (*metrics, TOTAL)] for line in self.lines]
        reference = next((at for at, line in enumerate(self.lines) if line.values[METHOD] == GRPO), None)
        return {"stages": [one.removeprefix(SECONDS) for one in metrics], "medians": medians, "reference": reference}

    def _median(self, line: Line, metric: str) -> float | None:
        values = [curve for at in line.runs if (curve := self.runs[at].metrics.get(metric)) is not None]
        return short(float(pd.concat(values).median())) if values else None

    def curve_table(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Accuracy by benchmark at each run's last point of the learning curve."""
        columns = [*sorted({benchmark_of(metric) for metric in metrics}), MEAN]
        by_name = {name: f"eval/{name}/{metrics[0].rsplit('/', 1)[1]}" for name in columns}
        values = {
            (at, name): float(curve.iloc[-1])
            for at, run in enumerate(self.runs)
            for name, metric in by_name.items()
            if (curve := run.metrics.get(metric)) is not None and len(curve)
        }
        return self._table("Last point of the learning curve, one sample for each problem", columns, values)

    def final_tables(self) -> list[dict[str, Any]]:
        """Accuracy by benchmark of the final evaluation, a table for each of its metrics; of the runs that have finished."""
        scores = {
            at: run.run.scores for at, run in enumerate(self.runs) if (run.run.folder / "evaluation.csv").exists()
        }
        tables = []
        for metric, title in FINAL.items():
            rows = {at: frame[frame["metric"] == metric] for at, frame in scores.items()}
            together = pd.concat(rows.values()) if rows else pd.DataFrame()
            if together.empty:
                continue
            columns = [name for name in together["benchmark"].unique() if name != MEAN] + [MEAN]
            values = {
                (at, str(name)): float(value)
                for at, frame in rows.items()
                for name, value in zip(frame["benchmark"], frame["value"], strict=True)
            }
            tables.append(self._table(f"Final evaluation, {with_sampling(title, together)}", columns, values))
        return tables

    def _table(self, name: str, columns: Sequence[str], values: Mapping[tuple[int, str], float]) -> dict[str, Any]:
        def cell(line: Line, column: str) -> list[Any] | None:
            found = [values[at, column] for at in line.runs if (at, column) in values]
            if not found:
                return None
            mean, error = mean_and_standard_error(found)
            return [short(mean), short(error), [short(value) for value in found]]

        return {
            "name": name,
            "columns": list(columns),
            "rows": [[cell(line, column) for column in columns] for line in self.lines],
        }

    def _drawn(self, curve: pd.Series) -> list[Any]:
        steps = [int(step) for step in curve.index]
        if steps not in self.axes:
            self.axes.append(steps)
        return [self.axes.index(steps), [short(float(value)) for value in curve]]


def averages(curve: pd.Series, points: int) -> pd.Series:
    """At most `points`: the means of equal stretches of a curve, each at the middle one of its steps."""
    if len(curve) <= points:
        return curve
    stretches = np.array_split(np.arange(len(curve)), points)
    middle = [curve.index[stretch[len(stretch) // 2]] for stretch in stretches]
    return pd.Series([float(curve.iloc[stretch].mean()) for stretch in stretches], index=middle)


def _spread(count: int, points: int) -> list[int]:
    """At most `points` of `count` places, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, points))}) if count else []
