"""Runs that train to a threshold, a row each (steps.csv of experiments.study): how soon an arm gets there at its best rate."""

import numpy as np
import pandas as pd

STEPS = "steps.csv"
ENDS = ("median", "low", "high")


def steps_to_threshold(costs: pd.DataFrame) -> pd.Series:
    """Steps of each run, infinite where it does not get there; costs: columns reached, steps."""
    return costs["steps"].astype(float).where(costs["reached"].astype(bool), np.inf)


def steps_at_best_rate(costs: pd.DataFrame) -> pd.DataFrame:
    """By (condition, arm): rate, that of the least median; ENDS, the median, least and most steps over its seeds; how many seeds.

    costs: columns condition, arm, rate, seed, reached, steps. A rate that was run under fewer seeds than another one of the arm
    does not count; of rates with equal medians the one does whose most, then least, steps are fewer.
    """
    counted = costs.assign(steps=steps_to_threshold(costs))
    by_rate = counted.groupby(["condition", "arm", "rate"], sort=False)["steps"].agg(["median", "min", "max", "count"])
    by_rate.columns = pd.Index([*ENDS, "seeds"])
    most = by_rate.groupby(["condition", "arm"])["seeds"].transform("max")
    order = by_rate[by_rate["seeds"] == most].sort_values(["median", "high", "low"], kind="stable")
    return order.groupby(["condition", "arm"], sort=False).head(1).reset_index("rate")


def at_best_rate(rows: pd.DataFrame, costs: pd.DataFrame) -> pd.Series:
    """Whether each row (condition, arm, rate) is at the best rate of its arm, by `costs`."""
    best = steps_at_best_rate(costs)["rate"]
    return rows["rate"] == [best[one] for one in zip(rows["condition"], rows["arm"], strict=True)]
