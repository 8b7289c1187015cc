"""In which regimes one method learns sooner than another: what a verdict on one task cannot say.

The regimes are those of sheets, whose runs train to a threshold (experiments.study, steps.csv).
"""

import pandas as pd

from oar.analysis.claims.claims import MIN_SEEDS
from oar.analysis.thresholds import steps_at_best_rate

SOONER, LATER, OPEN = "holds", "fails", "open"


def regimes(first: str, second: str, costs: pd.DataFrame) -> dict[str, str]:
    """By condition whether arm `first` gets there sooner than `second`: SOONER, LATER, or OPEN.

    OPEN where their seeds overlap, or are fewer than MIN_SEEDS. costs: as of `steps_at_best_rate`. A condition that lacks one of
    the arms is left out.
    """
    steps, found = steps_at_best_rate(costs), {}
    for condition in costs["condition"].unique():
        if (condition, first) in steps.index and (condition, second) in steps.index:
            own, other = steps.loc[(condition, first)], steps.loc[(condition, second)]
            sooner, later = own["high"] < other["low"], own["low"] > other["high"]
            few = min(own["seeds"], other["seeds"]) < MIN_SEEDS
            found[str(condition)] = OPEN if few or not (sooner or later) else SOONER if sooner else LATER
    return found
