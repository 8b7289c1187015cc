"""Runs that train to a threshold, a row each (steps.csv of experiments.study): how soon an arm gets there at its best rate."""

import numpy as np
import pandas as pd

STEPS = "steps.csv"
MANY_SEEDS = 5  # of two equal arms a given one is sooner under each of them in 3 % of studies


def steps_to_threshold(costs: pd.DataFrame) -> pd.Series:
    """Steps of each run, infinite where it does not get there; costs: columns reached, steps."""
    return costs["steps"].astype(float).where(costs["reached"].astype(bool), np.inf)


def rates_in_order(steps: pd.DataFrame) -> list[float]:
    """The learning rates of an arm that count, the best first. steps: a row per seed, a column per rate, NaN: not run.

    A rate counts that was run under MANY_SEEDS, or under no fewer than any other of the arm. Those that count are held against
    each other by their medians over the seeds that they share, or, where these are fewer than a rate needs to count, each over
    its own. Of equal medians the one comes first whose most, then least, steps are fewer.
    """
    seeds = steps.notna().sum()
    enough = min(MANY_SEEDS, seeds.max())
    steps = steps.loc[:, seeds >= enough]
    shared = steps.dropna()
    compared = (shared if len(shared) >= enough else steps).agg(["median", "max", "min"]).T
    return [float(rate) for rate in compared.sort_values(["median", "max", "min"], kind="stable").index]


def best_rates(costs: pd.DataFrame) -> dict[tuple[str, str], float]:
    """By condition and arm the first of `rates_in_order`. costs: as of `best_runs`."""
    return {arm: rates[0] for arm, rates in _rates_by_arm(costs).items()}


def best_runs(costs: pd.DataFrame) -> pd.DataFrame:
    """Of `costs` a row per condition, arm and seed: the run at the first of `rates_in_order` that was run under the seed.

    So arms are compared at their best rates, and under seeds that were run at one rate alone at that one.

    costs: columns condition, arm, rate, seed, reached, steps.
    """
    kept = [costs.head(0)]
    for arm, rates in _rates_by_arm(costs).items():
        own = costs[(costs["condition"] == arm[0]) & (costs["arm"] == arm[1])]
        places = {rate: place for place, rate in enumerate(rates)}
        of = own.assign(place=own["rate"].map(places)).dropna(subset="place").sort_values("place", kind="stable")
        kept.append(of.drop_duplicates("seed").drop(columns="place"))
    return pd.concat(kept).sort_index()


def median_steps(costs: pd.DataFrame) -> pd.Series:
    """By (condition, arm) the median over seeds of the steps of `best_runs`, infinite where half or more do not get there."""
    best = best_runs(costs)
    return steps_to_threshold(best).groupby([best["condition"], best["arm"]], sort=False).median().rename("steps")


def steps_by_seed(costs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By condition the steps of `best_runs`, infinite: not reached; a row per seed, a column per arm, NaN: not run."""
    best, found = best_runs(costs), {}
    for condition, own in best.assign(steps=steps_to_threshold(best)).groupby("condition", sort=False):
        found[str(condition)] = own.pivot(index="seed", columns="arm", values="steps")[own["arm"].unique()]
    return found


def _rates_by_arm(costs: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """By condition and arm `rates_in_order`."""
    runs = costs.assign(steps=steps_to_threshold(costs)).groupby(["condition", "arm"], sort=False)
    return {
        (str(condition), str(arm)): rates_in_order(own.pivot(index="seed", columns="rate", values="steps"))
        for (condition, arm), own in runs
    }
