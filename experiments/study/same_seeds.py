"""Arms held against each other under the same seeds: seed by seed, and at several learning rates."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.study.reward_curves import steps_in_words
from oar.analysis.reports.methods import CONTROL
from oar.analysis.thresholds import at_best_rate, steps_at_best_rate, steps_to_threshold

ENOUGH_SEEDS = 3  # of an arm that is called the best, drawn, or compared at several rates


def seed_by_seed(costs: pd.DataFrame, kinds: Mapping[str, str], reference: str) -> dict[str, pd.DataFrame]:
    """By condition under how many seeds an arm (row) gets there sooner, and later, than the reference and each control (column).

    "4 : 1 of 5"; a seed counts for no side where both get there at the same point, or neither does. Each arm at its best rate.
    Controls are held against the reference alone.
    """
    counted = costs.assign(steps=steps_to_threshold(costs))[at_best_rate(costs, costs)]
    found: dict[str, pd.DataFrame] = {}
    for condition, own in counted.groupby("condition", sort=False):
        arms, steps = list(own["arm"].unique()), own.pivot(index="seed", columns="arm", values="steps")
        controls = [arm for arm in arms if kinds[arm] == CONTROL]
        found[str(condition)] = pd.DataFrame(
            {
                other: {
                    arm: _sides(steps[[arm, other]]) if arm not in controls or other == reference else ""
                    for arm in arms
                    if arm != reference
                }
                for other in arms
                if other == reference or other in controls
            }
        )
    return found


def several_rates(costs: pd.DataFrame, reference: str) -> dict[str, dict[str, Any]]:
    """By condition how soon arms get there at several learning rates, under the same seeds.

    `seeds`: those at all rates at which the reference was run under ENOUGH_SEEDS; conditions with ENOUGH_SEEDS and two rates.
    `rates`: these. `arms`: those that were run under these seeds at two of the rates or more, each with `steps`, in words by
    rate, `best`, its rate of the least median, and `sides`, seeds under which it is sooner and later than the reference, both
    at their best.
    """
    found: dict[str, dict[str, Any]] = {}
    for condition, own in costs.groupby("condition", sort=False):
        seeds_at = own[own["arm"] == reference].groupby("rate")["seed"].agg(set)
        seeds_at = seeds_at[seeds_at.map(len) >= ENOUGH_SEEDS]
        seeds = set.intersection(*seeds_at) if len(seeds_at) > 1 else set()
        if len(seeds) < ENOUGH_SEEDS:
            continue
        runs = own[own["seed"].isin(seeds) & own["rate"].isin(seeds_at.index)]
        runs = runs[runs.groupby(["arm", "rate"])["seed"].transform("size") == len(seeds)]
        runs = runs[runs.groupby("arm")["rate"].transform("nunique") > 1]
        best = steps_at_best_rate(runs)["rate"].droplevel("condition")
        steps = runs.assign(steps=steps_to_threshold(runs))
        ends = steps.groupby(["arm", "rate"])["steps"].agg(["median", "min", "max"])
        at_best = steps[at_best_rate(steps, runs)].pivot(index="seed", columns="arm", values="steps")
        arms = {
            str(arm): {
                "steps": {rate: steps_in_words(*row) for rate, row in zip(of.index, of.to_numpy(), strict=True)},
                "best": best[arm],
                "sides": _sides(at_best[[arm, reference]]) if arm != reference else "",
            }
            for arm in runs["arm"].unique()
            for of in [ends.loc[arm]]
        }
        found[str(condition)] = {"seeds": sorted(seeds), "rates": sorted(seeds_at.index), "arms": arms}
    return found


def _sides(pair: pd.DataFrame) -> str:
    """Of two arms, a column each, seeds under which the first has fewer steps, and more, of those that both were run with."""
    mine, other = pair.dropna().to_numpy().T
    return f"{(mine < other).sum()} : {(mine > other).sum()} of {len(mine)}" if len(mine) else "no seed in common"
