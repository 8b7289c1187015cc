"""Where an arm stands between the reference (0) and the ceiling (1), the fastest oracle, and the pictures of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.study.same_seeds import ENOUGH_SEEDS
from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.methods import ORACLE, label, looks_of
from oar.analysis.thresholds import MANY_SEEDS, best_runs, steps_to_threshold

CEILING = 1.0  # of `standing`
LOWEST = -1.0  # that is drawn: one late run would squeeze all others
MAP_REGIMES = 3  # an arm on the map is in so many regimes


def standings(costs: pd.DataFrame, kinds: Mapping[str, str], reference: str) -> pd.DataFrame:
    """By (condition, arm), of `best_runs`, of the steps that the ceiling saves against the reference the share saved.

    Columns: standing, by the medians, and standing_low and standing_high, those of its latest and soonest run. The ceiling is the
    oracle with the lowest median. All three are taken over the seeds that they were all run under: seeds are more and less lucky.
    NaN where half of an arm's runs or more do not get there, where there is no such seed, and where the ceiling is no sooner.
    """
    best = best_runs(costs)
    counted = best.assign(run=best["steps"], steps=steps_to_threshold(best))
    found: dict[tuple[str, str], dict[str, float]] = {}
    for condition, own in counted.groupby("condition", sort=False):
        steps, ran = (own.pivot(index="seed", columns="arm", values=name) for name in ("steps", "run"))
        arms = [str(arm) for arm in steps]
        oracles = [arm for arm in arms if kinds[arm] == ORACLE]
        if reference not in arms or not oracles:
            continue
        ceiling = str(steps[oracles].median().idxmin())
        for arm in arms:
            shared = steps[[reference, ceiling, arm]].notna().all(axis=1)
            taken, longest = steps[shared], ran[shared].max()
            # A reference that does not get there counts with the steps it ran: no arm is put too high by that.
            slow = min(taken[reference].median(), longest[reference])
            gap = slow - taken[ceiling].median()
            if gap > 0 and np.isfinite(taken[arm].median()):
                # A range with a run that does not get there ends at the steps that it ran, or it would look like one point.
                drawn = taken[arm].clip(upper=longest[arm])
                ends = {"standing": drawn.median(), "standing_low": drawn.max(), "standing_high": drawn.min()}
                found[str(condition), arm] = {name: (slow - end) / gap for name, end in ends.items()}
    return pd.DataFrame.from_dict(found, orient="index", columns=["standing", "standing_low", "standing_high"])


def of_enough_seeds(arms: pd.DataFrame) -> pd.DataFrame:
    """Rows of one condition whose arm was run under ENOUGH_SEEDS, or the most that one has: two lucky seeds say little."""
    return arms[arms["seeds"] >= arms["seeds"].clip(upper=ENOUGH_SEEDS).max()]


def draw_standing(panels: Mapping[str, pd.DataFrame], arms: Sequence[str], path: Path) -> None:
    """A panel per condition with a gap, a line per arm: where it stands between reference and ceiling (0 and 1)."""
    draw_dots(
        panels,
        path,
        looks=looks_of(arms),
        beside=dict.fromkeys(panels, CEILING),
        least=0.0,
        xlabel=dict.fromkeys(panels, "steps saved: GRPO 0, ceiling 1"),
        note="median over seeds, range to -1 (a run that never gets there: by its steps); "
        "×: half never do; no mark: not run, too few seeds, or no gap under them",
    )


def standing_panels(summary: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By condition whose ceiling is above its reference: of each arm value, low and high, LOWEST at least.

    Of arms `of_enough_seeds` alone: the tables have the others.
    """
    best = summary[summary["best"]].rename(
        columns={"standing": "value", "standing_low": "low", "standing_high": "high"}
    )
    drawn = best[["value", "low", "high"]].clip(lower=LOWEST)
    best = best.assign(line=best["arm"].map(label), series=best["arm"], **drawn)
    best = best[best["value"].notna() | np.isinf(best["steps"])]  # that gets there, but stands nowhere: it has no mark
    found = {str(name): of_enough_seeds(own) for name, own in best.groupby("condition", sort=False)}
    return {name: own for name, own in found.items() if own["value"].notna().any()}  # without a gap nothing stands


def map_panels(
    panels: Mapping[str, pd.DataFrame], first: Mapping[str, Mapping[str, Mapping[str, Any] | None]]
) -> dict[str, pd.DataFrame]:
    """Of `standing_panels` what can be seen at one look; nothing where fewer than MAP_REGIMES have enough seeds for it.

    Regimes whose reference, best method and ceiling (`first`, of `fastest`) share MANY_SEEDS, and arms that stand in MAP_REGIMES
    of them. Of oracles the ceiling alone, which is the line at 1.
    """
    known = {
        name: own
        for name, own in panels.items()
        if min(row["seeds"] if row else 0 for row in first[name].values()) >= MANY_SEEDS
    }
    if len(known) < MAP_REGIMES:
        return {}
    regimes_of = pd.concat(known.values()).groupby("arm")["condition"].nunique()
    often = regimes_of.index[regimes_of >= MAP_REGIMES]
    return {name: own[own["arm"].isin(often) & (own["kind"] != ORACLE)] for name, own in known.items()}
