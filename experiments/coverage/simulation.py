"""How often an interval over few training seeds holds the true difference: simulated, with the intervals that pages show.

Two arms that are the same, so the true difference is 0: each problem has a chance of being solved, moved by a seed effect of
its arm and seed, and k samples are drawn of it. Pure numpy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oar.statistics.accuracy import Accuracy
from oar.statistics.intervals import CONFIDENCE, PERCENT, crossed_bootstrap

BATCH = 250  # simulations at a time: bounds the memory, and each has a bootstrap seed of its own
CHANCES = (0.2, 0.8)  # between which the chances of problems lie: no seed effect of SETTINGS leaves 0 to 1


@dataclass(frozen=True, slots=True)
class Setting:
    """`seed_noise`: standard deviation of the seed effect on an arm's accuracy, percentage points."""

    name: str
    problems: int
    seed_noise: float
    k: int = 4

    @property
    def sampling_noise(self) -> float:
        """Standard deviation of an arm's accuracy by drawing k samples of each problem, percentage points."""
        low, high = CHANCES
        spread = (low + high) / 2 - (low**2 + low * high + high**2) / 3  # mean of p (1 - p), p uniform
        return PERCENT * float(np.sqrt(spread / self.k / self.problems))


SETTINGS = (
    Setting("small seed noise, 300 problems", 300, 1.35),  # as large as the sampling noise
    Setting("large seed noise, 300 problems", 300, 5.0),
    Setting("large seed noise, 1,000 problems", 1000, 5.0),
)
INTERVALS = ("bootstrap", "student", "both")


def coverage(setting: Setting, seeds: int, *, simulations: int, resamples: int, seed: int) -> dict[str, float]:
    """Share of `simulations` whose interval holds 0, by INTERVALS: bootstrap over problems and seeds, Student's, their hull.

    `seeds`: two or more; `resamples`: draws of a bootstrap.
    """
    rng, held = np.random.default_rng(seed), dict.fromkeys(INTERVALS, 0)
    for start in range(0, simulations, BATCH):
        count = min(BATCH, simulations - start)
        scores = _scores(setting, seeds, count, rng)
        draws = crossed_bootstrap([scores], seed=seed + start, resamples=resamples)
        by_seed = scores.mean(axis=2)
        for at in range(count):
            pair = [at, count + at]
            found = Accuracy(by_seed[pair].T, draws[:, pair]).difference()
            for name, (low, high) in zip(
                INTERVALS, (found.bootstrap, found.student, (found.low, found.high)), strict=True
            ):
                held[name] += low <= 0 <= high
    return {name: number / simulations for name, number in held.items()}


def error(simulations: int, share: float = CONFIDENCE) -> float:
    """Standard error of a share of so many simulations."""
    return float(np.sqrt(share * (1 - share) / simulations))


def _scores(setting: Setting, seeds: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Percent, (2 * count, seeds, problems): the first arm of each simulation, then the second, on the same problems."""
    chances = np.tile(rng.uniform(*CHANCES, size=(count, 1, setting.problems)), (2, 1, 1))
    effects = rng.normal(0, setting.seed_noise / PERCENT, size=(2 * count, seeds, 1))
    right = rng.binomial(setting.k, np.clip(chances + effects, 0, 1))
    return np.asarray(PERCENT * right / setting.k, dtype=np.float64)
