"""A study of accuracy at several learning rates: each rate is a condition, and one more holds every arm at its own best rate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.study.studies import arm_scores
from oar.analysis.arms import METRICS
from oar.analysis.reports.figures import draw_lines
from oar.analysis.reports.methods import looks_of
from oar.evaluation.evaluate import MEAN, SAMPLED_METRIC
from oar.runs.folder import Run

AT, BEST = "-lr", "-best"  # of a condition's name: parts-lr0.0002, parts-best


def at_rate(condition: str, rate: float) -> str:
    """The condition that is `condition` at a learning rate."""
    return f"{condition}{AT}{rate:g}"


def with_best_rates(runs: Sequence[Run], about: Mapping[str, Any]) -> tuple[list[Run], dict[str, Any]]:
    """The runs once more, under a condition of their own, of each arm at the rate of its highest mean of avg@k over seeds.

    A rate that was run under fewer seeds than another one of the arm does not count. `about`: `described` of the study, whose
    conditions name these rates then.
    """
    scores, arm = _by_rate(arm_scores(runs)), ["base", "arm"]
    sampled = scores[scores["metric"] == SAMPLED_METRIC]
    of = sampled.groupby([*arm, "condition", "rate"], sort=False)["value"].agg(["mean", "count"]).reset_index()
    of = of[of["count"] == of.groupby(arm)["count"].transform("max")]
    best = of.loc[of.groupby(arm, sort=False)["mean"].idxmax()]
    place = {(row.condition, row.arm): f"{row.base}{BEST}" for row in best.itertuples()}
    again = [replace(run, condition=place[key]) for run in runs if (key := (run.condition, run.arm)) in place]
    again.sort(key=lambda run: [*about["arms"]].index(run.arm))
    said = {
        f"{base}{BEST}": [f"each arm at its best rate ({', '.join(own['arm'] + ' ' + own['rate'])})"]
        for base, own in best.groupby("base", sort=False)
    }
    return [*runs, *again], {**about, "conditions": {**about["conditions"], **said}}


def draw_accuracy_at_rates(scores: pd.DataFrame, titles: Mapping[str, str], path: Path) -> None:
    """A panel per condition and metric (by its title): percent of held-out problems over the learning rate; of scores.csv."""
    at = _by_rate(scores)
    rows = at.assign(step=at["rate"].astype(float)).rename(columns={"arm": "series", "seed": "run"})
    panels = {
        f"{base}: {titles[metric]} (%)": rows[(rows["base"] == base) & (rows["metric"] == metric)]
        for base in rows["base"].unique()
        for metric in METRICS
    }
    looks = looks_of(list(rows["series"].unique()))
    draw_lines(panels, path, looks=looks, columns=len(METRICS), xlabel="learning rate", logarithmic=True)


def _by_rate(scores: pd.DataFrame) -> pd.DataFrame:
    """The means over benchmarks at each rate, with `base`, the condition without it, and `rate` as it is written."""
    at = scores[(scores["benchmark"] == MEAN) & ~scores["condition"].str.endswith(BEST)].copy()
    at[["base", "rate"]] = at["condition"].str.rsplit(AT, n=1, expand=True)
    return at
