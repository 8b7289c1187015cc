"""The tables of a dashboard's page: accuracy by benchmark with the spread over seeds, seconds of a step by stage."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.dashboard.lines import METHOD, Line
from experiments.dashboard.logged import Logged
from experiments.dashboard.panels import SECONDS, TOTAL, benchmark_of
from oar.analysis.reports.figures import with_sampling
from oar.analysis.reports.methods import GRPO
from oar.analysis.reports.page import with_error
from oar.evaluation.evaluate import MEAN, METRICS
from oar.statistics.intervals import mean_and_standard_error

SPREAD = "mean ± its standard error over seeds, %"


def tier_tables(runs: Sequence[Logged], lines: Sequence[Line], metrics: Sequence[str]) -> dict[str, pd.DataFrame]:
    """By title accuracy by benchmark, a row of text for each line: in the final evaluation of finished runs, and at each run's
    last point of the learning curve.
    """
    final, last = [], []
    for line in lines:
        for at in line.runs:
            of: dict[str, Any] = {"line": line.name, "run": at}
            if (runs[at].run.folder / "evaluation.csv").exists():
                final.append(runs[at].run.scores.assign(**of))
            curves = [(benchmark_of(name), runs[at].metrics.get(name)) for name in (*metrics, *_mean_of(metrics))]
            last += [
                {**of, "benchmark": benchmark, "value": curve.iloc[-1]}
                for benchmark, curve in curves
                if curve is not None and len(curve)
            ]
    tables = {}
    scores = pd.concat(final) if final else pd.DataFrame(columns=["metric"])
    for metric, title in METRICS.items():
        rows = scores[scores["metric"] == metric]
        if len(rows):
            tables[f"Final evaluation, {with_sampling(title, rows)}: {SPREAD}"] = _by_line(rows)
    if last:
        tables[f"Last point of the learning curve, one sample for each problem: {SPREAD}"] = _by_line(
            pd.DataFrame(last)
        )
    return tables


def _mean_of(metrics: Sequence[str]) -> list[str]:
    return [f"eval/{MEAN}/{metrics[0].rsplit('/', 1)[1]}"] if metrics else []


def _by_line(rows: pd.DataFrame) -> pd.DataFrame:
    groups = rows.groupby(["line", "benchmark"], sort=False)["value"]
    table = groups.agg(lambda values: with_error(*mean_and_standard_error(values))).unstack(fill_value="–")
    columns = [*(name for name in rows["benchmark"].unique() if name != MEAN), MEAN]
    seeds = rows.groupby("line", sort=False)["run"].nunique()
    return table.reindex(seeds.index)[[name for name in columns if name in table]].assign(seeds=seeds.astype(str))


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


def stage_table(medians: pd.DataFrame, lines: Sequence[Line]) -> pd.DataFrame:
    """The same as text, and each whole step in GRPO's."""
    table = medians.map("{:.4g}".format, na_action="ignore").fillna("–").rename(columns={TOTAL: "whole step"})
    grpo = next((line.name for line in lines if line.values[METHOD] == GRPO and line.name in medians.index), None)
    return (
        table
        if grpo is None
        else table.assign(**{"of GRPO's": (medians[TOTAL] / medians[TOTAL][grpo]).map("{:.2f}x".format)})
    )
