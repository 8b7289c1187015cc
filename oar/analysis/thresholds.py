"""Runs that train to a threshold, a row each (steps.csv of experiments.study): how soon an arm gets there at its best rate."""

import numpy as np
import pandas as pd

STEPS = "steps.csv"
ENDS = ("median", "low", "high")
MANY_SEEDS = 5  # of two equal arms a given one is sooner under each of them in 3 % of studies


def steps_to_threshold(costs: pd.DataFrame) -> pd.Series:
    """Steps of each run, infinite where it does not get there; costs: columns reached, steps."""
    return costs["steps"].astype(float).where(costs["reached"].astype(bool), np.inf)


def steps_at_best_rate(costs: pd.DataFrame) -> pd.DataFrame:
    """By (condition, arm): rate, that of the least median; ENDS, the median, least and most steps over its seeds; how many seeds.

    costs: columns condition, arm, rate, seed, reached, steps. A rate counts that was run under MANY_SEEDS, or under no fewer than
    any other of the arm. Rates that count are held against each other over the seeds that they share, or, where these are fewer
    than a rate needs to count, each over its own. Of equal medians the one does whose most, then least, steps are fewer.
    """
    rows = []
    for arm, own in costs.assign(steps=steps_to_threshold(costs)).groupby(["condition", "arm"], sort=False):
        steps = own.pivot(index="seed", columns="rate", values="steps")
        seeds = steps.notna().sum()
        enough = min(MANY_SEEDS, seeds.max())
        steps = steps.loc[:, seeds >= enough]
        shared = steps.dropna()
        compared = (shared if len(shared) >= enough else steps).agg(["median", "max", "min"]).T
        rate = compared.sort_values(["median", "max", "min"], kind="stable").index[0]
        rows.append([*arm, rate, *steps[rate].agg(["median", "min", "max"]), int(seeds[rate])])
    return pd.DataFrame(rows, columns=["condition", "arm", "rate", *ENDS, "seeds"]).set_index(["condition", "arm"])


def at_best_rate(rows: pd.DataFrame, costs: pd.DataFrame) -> pd.Series:
    """Whether each row (condition, arm, rate) is at the best rate of its arm, by `costs`."""
    best = steps_at_best_rate(costs)["rate"]
    return rows["rate"] == [best[one] for one in zip(rows["condition"], rows["arm"], strict=True)]
