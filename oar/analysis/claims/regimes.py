"""In which regimes one method learns sooner than another: what a verdict on one task cannot say.

The regimes are those of sheets, whose runs train to a threshold (experiments.study, steps.csv).
"""

import numpy as np
import pandas as pd

SOONER, LATER, OPEN = "holds", "fails", "open"


def regimes(first: str, second: str, costs: pd.DataFrame) -> dict[str, str]:
    """By condition whether arm `first` gets there sooner than `second`: SOONER, LATER, or OPEN where their seeds overlap.

    costs: a row per run with condition, arm, rate, reached, steps. Each arm counts with its best learning rate by the median; a
    run that does not get there takes for ever. A condition that lacks one of the arms is left out.
    """
    counted = costs.assign(steps=costs["steps"].astype(float).where(costs["reached"].astype(bool), np.inf))
    found = {}
    for condition, own in counted.groupby("condition", sort=False):
        ends = [_ends(own[own["arm"] == arm]) for arm in (first, second)]
        if all(len(each) for each in ends):
            (low, high), (other_low, other_high) = ends
            found[str(condition)] = SOONER if high < other_low else LATER if low > other_high else OPEN
    return found


def _ends(runs: pd.DataFrame) -> tuple[float, ...]:
    """The least and the most steps of an arm at its best rate; () without runs."""
    if runs.empty:
        return ()
    by_rate = runs.groupby("rate")["steps"]
    best = runs[runs["rate"] == by_rate.median().idxmin()]["steps"]
    return float(best.min()), float(best.max())
