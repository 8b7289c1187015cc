"""Arms held against each other under the same seeds: seed by seed, and at several learning rates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.study.reward_curves import steps_in_words
from oar.analysis.reports.figures import draw_lines
from oar.analysis.reports.methods import CONTROL, looks_of
from oar.analysis.thresholds import MANY_SEEDS, best_rates, steps_by_seed, steps_to_threshold
from oar.runs.folder import START_WEIGHTS

ENOUGH_SEEDS = 3  # of an arm that is called the best, drawn, or compared at several rates


def seed_by_seed(costs: pd.DataFrame, kinds: Mapping[str, str], reference: str) -> dict[str, pd.DataFrame]:
    """By condition under how many seeds an arm (row) gets there sooner, and later, than the reference and each control (column).

    "4 : 1 of 5"; a seed counts for no side where both get there at the same point, or neither does. Of `steps_by_seed`.
    Controls are held against the reference alone.
    """
    found: dict[str, pd.DataFrame] = {}
    for condition, steps in steps_by_seed(costs).items():
        arms = [str(arm) for arm in steps]
        controls = [arm for arm in arms if kinds[arm] == CONTROL]
        found[condition] = pd.DataFrame(
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


def runs_at_rates(costs: pd.DataFrame, reference: str) -> pd.DataFrame:
    """The runs of `costs` that tell how an arm depends on the learning rate: of the same seeds at two rates or more.

    Of a condition and the seeds that began with the same weights (those that do not say count as one base model) these are the
    rates at which the reference was run under MANY_SEEDS, or, where fewer than two are, under ENOUGH_SEEDS, and the seeds that it
    was run under at all of them; there is no row with fewer than ENOUGH_SEEDS such seeds or one such rate. An arm has the rates
    at which it was run under all these seeds, and no row without any. Their `condition` names the seeds as well.
    """
    parts = []
    base = costs.groupby(["condition", "seed"])[START_WEIGHTS].transform("first")  # of any run of the seed
    for (condition, _), own in costs.groupby(["condition", base], sort=False, dropna=False):
        seeds_at = own[own["arm"] == reference].groupby("rate")["seed"].agg(set)
        ran = seeds_at.map(len)
        seeds_at = seeds_at[ran >= (MANY_SEEDS if (ran >= MANY_SEEDS).sum() > 1 else ENOUGH_SEEDS)]
        seeds = set.intersection(*seeds_at) if len(seeds_at) > 1 else set()
        if len(seeds) < ENOUGH_SEEDS:
            continue
        runs = own[own["seed"].isin(seeds) & own["rate"].isin(seeds_at.index)]
        runs = runs[runs.groupby(["arm", "rate"])["seed"].transform("size") == len(seeds)]
        parts.append(runs.assign(condition=f"{condition}, seeds {', '.join(map(str, sorted(seeds)))}"))
    return pd.concat(parts) if parts else costs.head(0)


def rates_tables(runs: pd.DataFrame, reference: str) -> dict[str, dict[str, Any]]:
    """Of `runs_at_rates` by condition `rates` and `arms`.

    Of each arm `steps`: in words, by rate; `best`: its rate of the least median; `sides`: under how many seeds it is sooner, and
    later, than the reference, both at their best.
    """
    best, counted = best_rates(runs), runs.assign(steps=steps_to_threshold(runs))
    ends = counted.groupby(["condition", "arm", "rate"])["steps"].agg(["median", "min", "max"])
    written = {key: steps_in_words(*row) for key, row in zip(ends.index, ends.to_numpy(), strict=True)}
    at_best = steps_by_seed(runs)
    found: dict[str, dict[str, Any]] = {}
    for condition, own in runs.groupby("condition", sort=False):
        rates = sorted(own["rate"].unique())
        steps = at_best[str(condition)]
        arms = {
            str(arm): {
                "steps": {rate: written[condition, arm, rate] for rate in rates if (condition, arm, rate) in written},
                "best": best[str(condition), str(arm)],
                "sides": _sides(steps[[arm, reference]]) if arm != reference else "",
            }
            for arm in own["arm"].unique()
        }
        found[str(condition)] = {"rates": rates, "arms": arms}
    return found


def draw_steps_at_rates(runs: pd.DataFrame, path: Path) -> None:
    """Of `runs_at_rates` a panel per condition: the median of steps over the learning rate.

    A run that does not get there counts with the steps that it ran; a cross stands where half of them or more do not. There are
    no bands: those of a dozen arms hide each other.
    """
    by_rate = runs.groupby(["condition", "arm", "rate"], sort=False)
    medians = by_rate.agg(value=("steps", "median"), reached=("reached", "mean")).reset_index()
    rows = medians.assign(run="median", marked=medians["reached"] <= 0.5)
    rows = rows.rename(columns={"arm": "series", "rate": "step"})
    titles = {f"{condition}: steps": own for condition, own in rows.groupby("condition", sort=False)}
    looks = looks_of(list(runs["arm"].unique()))
    draw_lines(titles, path, looks=looks, columns=min(2, len(titles)), xlabel="learning rate", logarithmic=True)


def _sides(pair: pd.DataFrame) -> str:
    """Of two arms, a column each, seeds under which the first has fewer steps, and more, of those that both were run with."""
    mine, other = pair.dropna().to_numpy().T
    return f"{(mine < other).sum()} : {(mine > other).sum()} of {len(mine)}" if len(mine) else "no seed in common"
