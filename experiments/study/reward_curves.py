"""Learning curves of runs that train to a threshold, and how soon they reach lower ones: does the order of arms hang on it?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.thresholds import steps_at_best_rate
from oar.learner.run import CURVE, EARNED
from oar.runs.folder import Run

RUN = ["condition", "arm", "rate", "seed"]
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


def beside(new: pd.DataFrame, earlier: pd.DataFrame, changed: Sequence[str]) -> pd.DataFrame:
    """Rows of `new` runs, and those of `earlier` ones that were not run anew, without the conditions that have changed."""
    kept = earlier[~earlier["condition"].isin(changed)]
    again = kept.set_index(RUN).index.isin(new.set_index(RUN).index)
    return pd.concat([new, kept[~again]], ignore_index=True)


def lower_thresholds(curves: pd.DataFrame, costs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By condition the steps of each arm (row) at its best rate to thresholds of BELOW (column): `100 [80, 250]`.

    Median, least and most over the seeds whose curves are there. costs: steps.csv.
    """
    best = steps_at_best_rate(costs)["rate"]
    arms = curves[[best[one] for one in zip(curves["condition"], curves["arm"], strict=True)] == curves["rate"]]
    found: dict[str, pd.DataFrame] = {}
    for condition, own in arms.groupby("condition", sort=False):
        runs, columns = pd.MultiIndex.from_frame(own.loc[:, RUN].drop_duplicates()), {}
        for below in BELOW:
            bound = round(own["threshold"].iloc[0] - below, 6)
            first = own[own["reward"] >= bound].groupby(RUN)["step"].min()
            steps = first.reindex(runs).fillna(np.inf).groupby("arm", sort=False)
            columns[f"{bound:g}"] = steps.agg(lambda of: _spread(of.to_numpy()))
        found[str(condition)] = pd.DataFrame(columns)
    return found


def _spread(steps: NDArray[np.float64]) -> str:
    """Median, least and most of a number that is infinite where it is not reached."""
    ends = (np.median(steps), steps.min(), steps.max())
    median, low, high = ("not reached" if np.isinf(one) else f"{one:.0f}" for one in ends)
    return median if np.isinf(ends[0]) else f"{median} [{low}, {high}]"
