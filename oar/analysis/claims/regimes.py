"""In which regimes one method learns sooner than another: what a verdict on one task cannot say.

The regimes are those of sheets, whose runs train to a threshold (experiments.study, steps.csv).
"""

from math import comb

import numpy as np
import pandas as pd

from oar.analysis.thresholds import steps_by_seed

SOONER, LATER, OPEN = "holds", "fails", "open"
BY_CHANCE = 1 / 32  # how often of two equal arms a given one is sooner under each of five seeds


def regimes(first: str, second: str, costs: pd.DataFrame) -> dict[str, str]:
    """By condition whether arm `first` gets there sooner than `second`: SOONER, LATER, or OPEN.

    costs: as of `oar.analysis.thresholds.best_runs`; of `steps_by_seed` the seeds that both arms have. SOONER
    and LATER need so many seeds on that side that of two equal arms a given one has as many in BY_CHANCE of studies at most: all
    of five, nine of ten. A seed under which both take equally long, or neither gets there, is on no side and counts among them.
    A condition that lacks one of the arms is left out.
    """
    found = {}
    for condition, steps in steps_by_seed(costs).items():
        if {first, second} <= {*steps}:
            mine, other = steps[[first, second]].dropna().to_numpy().T
            sides = {SOONER: np.sum(mine < other), LATER: np.sum(mine > other)}
            told = [side for side, seeds in sides.items() if _by_chance(int(seeds), len(mine)) <= BY_CHANCE]
            found[condition] = told[0] if told else OPEN
    return found


def _by_chance(wins: int, seeds: int) -> float:
    """How likely it is to win so many of `seeds` fair coins or more."""
    return sum(comb(seeds, won) for won in range(wins, seeds + 1)) / 2**seeds
