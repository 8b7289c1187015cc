"""Learning curves of runs that train to a threshold, and how soon they reach lower ones: does the order of arms hang on it?"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from oar.analysis.reports.figures import draw_lines
from oar.analysis.reports.methods import looks_of
from oar.analysis.thresholds import best_runs
from oar.learner.run import CURVE, EARNED
from oar.runs.folder import Run

RUN = ["condition", "arm", "rate", "seed"]
ENDS = ("median", "low", "high")
BOUND = [*RUN, "threshold"]
BELOW = (0.3, 0.2, 0.1, 0.0)  # thresholds that are looked at, below that of the run


def earned(run: Run) -> pd.Series:
    """The mean reward of each point of the curve, by step; the share that is right where a run logged no reward."""
    logged = run.metrics
    return (logged[EARNED] if EARNED in logged else logged[CURVE] / 100).dropna()


def reward_curves(runs: Sequence[Run]) -> pd.DataFrame:
    """A row per run and point of its curve: RUN, step, reward, threshold (of the run)."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "condition": run.condition,
                    "arm": run.arm,
                    "rate": float(run.settings.learner.lr),
                    "seed": run.seed,
                    "step": (found := earned(run)).index,
                    "reward": found.to_numpy(np.float64),
                    "threshold": float(run.settings.evaluation.stop_at),
                }
            )
            for run in runs
        ],
        ignore_index=True,
    )


def beside(new: pd.DataFrame, earlier: pd.DataFrame, conditions: Sequence[str], arms: Sequence[str]) -> pd.DataFrame:
    """Rows of `new` runs, and those of `earlier` ones that were not run anew and are of none of `conditions` and `arms`."""
    kept = earlier[~(earlier["condition"].isin(conditions) | earlier["arm"].isin(arms))]
    again = kept.set_index(RUN).index.isin(new.set_index(RUN).index)
    return pd.concat([new, kept[~again]], ignore_index=True)


def lower_thresholds(curves: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """A row per condition, arm at its best rate and threshold of BELOW: seeds, and ENDS of its steps.

    Over the seeds whose curves are there; infinite where a run does not get there. costs: steps.csv.
    """
    at_best = curves.merge(best_runs(costs)[RUN])
    parts = []
    for below in BELOW:
        points = at_best.assign(threshold=(at_best["threshold"] - below).round(6))
        runs = pd.MultiIndex.from_frame(points[BOUND].drop_duplicates())
        there = points[points["reward"] >= points["threshold"]]
        parts.append(there.groupby(BOUND)["step"].min().reindex(runs).fillna(np.inf))
    steps = pd.concat(parts).groupby(["condition", "arm", "threshold"], sort=False)
    return steps.agg(["count", "median", "min", "max"]).set_axis(["seeds", *ENDS], axis="columns").reset_index()


def draw_rewards(curves: pd.DataFrame, costs: pd.DataFrame, arms: Sequence[str], path: Path) -> None:
    """A panel per condition: the mean reward over training steps, each of `arms` at its best rate. costs: steps.csv."""
    drawn = curves.merge(best_runs(costs)[RUN]).rename(columns={"arm": "series", "seed": "run", "reward": "value"})
    panels = {str(condition): own for condition, own in drawn.groupby("condition", sort=False)}
    draw_lines(panels, path, looks=looks_of(arms), columns=min(3, len(panels)), legend="mean reward")


def threshold_tables(found: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By condition the same as text, `100 [80, 250]`: a row per arm and its number of seeds, a column per threshold."""
    written = found.assign(steps=[steps_in_words(*row) for row in found[list(ENDS)].to_numpy()])
    return {
        str(condition): own.pivot(index=["arm", "seeds"], columns="threshold", values="steps").loc[own["arm"].unique()]
        for condition, own in written.groupby("condition", sort=False)
    }


def steps_in_words(median: float, low: float, high: float) -> str:
    """`100 [80, 250]`; infinite: not reached."""
    end = "not reached" if np.isinf(high) else f"{high:.0f}"
    return "not reached" if np.isinf(median) else f"{median:.0f} [{low:.0f}, {end}]"
