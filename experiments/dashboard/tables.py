"""The tables of a dashboard's page: accuracy by benchmark with the spread over seeds, seconds of a step by stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.dashboard.logged import Logged
from experiments.dashboard.runs import METHOD, SECONDS, TOTAL, Line, benchmark_of
from oar.analysis.reports.figures import with_sampling
from oar.analysis.reports.methods import GRPO
from oar.evaluation.evaluate import MEAN
from oar.evaluation.evaluate import METRICS as FINAL
from oar.statistics.intervals import mean_and_standard_error


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells; the first of a row names its line."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tier_tables(runs: Sequence[Logged], lines: Sequence[Line], metrics: Sequence[str]) -> list[Table]:
    """Accuracy by benchmark in the final evaluation of finished runs, and at each run's last point of the learning curve."""
    scores = {at: run.run.scores for at, run in enumerate(runs) if (run.run.folder / "evaluation.csv").exists()}
    tables = []
    for metric, title in FINAL.items():
        rows = {at: frame[frame["metric"] == metric] for at, frame in scores.items()}
        together = pd.concat(rows.values()) if rows else pd.DataFrame()
        if not together.empty:
            columns = [name for name in together["benchmark"].unique() if name != MEAN] + [MEAN]
            values = {
                (at, str(name)): float(value)
                for at, frame in rows.items()
                for name, value in zip(frame["benchmark"], frame["value"], strict=True)
            }
            tables.append(_table(f"Final evaluation, {with_sampling(title, together)}", columns, values, lines))
    if metrics:
        tables.append(_curve_table(runs, lines, metrics))
    return tables


def _curve_table(runs: Sequence[Logged], lines: Sequence[Line], metrics: Sequence[str]) -> Table:
    columns = [*sorted({benchmark_of(metric) for metric in metrics}), MEAN]
    by_name = {name: f"eval/{name}/{metrics[0].rsplit('/', 1)[1]}" for name in columns}
    values = {
        (at, name): float(curve.iloc[-1])
        for at, run in enumerate(runs)
        for name, metric in by_name.items()
        if (curve := run.metrics.get(metric)) is not None and len(curve)
    }
    return _table("Last point of the learning curve, one sample for each problem", columns, values, lines)


def _table(name: str, columns: Sequence[str], values: Mapping[tuple[int, str], float], lines: Sequence[Line]) -> Table:
    def cell(line: Line, column: str) -> str:
        found = [values[at, column] for at in line.runs if (at, column) in values]
        if not found:
            return "–"
        mean, error = mean_and_standard_error(found)
        return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"

    rows = []
    for line in lines:
        seeds = len({at for at in line.runs for column in columns if (at, column) in values})
        if seeds:
            rows.append([line.name, *(cell(line, column) for column in columns), str(seeds)])
    return Table(f"{name}: mean ± its standard error over seeds, %", ["", *columns, "seeds"], rows)


def stage_medians(runs: Sequence[Logged], lines: Sequence[Line], metrics: Sequence[str]) -> pd.DataFrame:
    """Seconds by line and stage, medians over steps and seeds; TOTAL last. Lines without timings are left out."""
    rows = {
        line.name: {metric: _median([runs[at] for at in line.runs], metric) for metric in (*metrics, TOTAL)}
        for line in lines
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return frame.rename(columns={metric: metric.removeprefix(SECONDS) for metric in metrics}).dropna(how="all")


def _median(runs: Sequence[Logged], metric: str) -> float:
    values = [run.metrics[metric] for run in runs if metric in run.metrics]
    return float(pd.concat(values).median()) if values else float("nan")


def stage_table(medians: pd.DataFrame, lines: Sequence[Line]) -> Table:
    """The same in numbers, and each whole step in GRPO's."""
    grpo = next((line.name for line in lines if line.values[METHOD] == GRPO and line.name in medians.index), None)
    rows = [
        [str(name), *("–" if pd.isna(one) else f"{one:.4g}" for one in row)]
        + ([] if grpo is None else [f"{row[TOTAL] / medians[TOTAL][grpo]:.2f}x"])
        for name, row in medians.iterrows()
    ]
    stages = [str(stage) for stage in medians if stage != TOTAL]
    return Table(
        "Seconds of a training step by stage, median over steps and seeds",
        ["", *stages, "whole step", *([] if grpo is None else ["of GRPO's"])],
        rows,
    )
