"""How soon arms get to a threshold, in words, for pages that say it: `Steps(folder).took("one", "oar_p", seeds=[11, 12, 13])`."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.shared.tables import Tables
from oar.analysis.thresholds import STEPS, best_runs, steps_to_threshold
from oar.common.errors import DataError

_ONES = (
    *("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class Steps:
    """What can be asked of the runs of a folder (steps.csv): of an arm in a condition, under some seeds or all of its own.

    An arm is at its best rate under these seeds (`oar.analysis.thresholds.best_runs`), or at `rate`. Raises DataError where
    something asked for was not run.
    """

    def __init__(self, folder: Path) -> None:
        self._tables = Tables(folder)

    def took(self, condition: str, arm: str, seeds: Sequence[int] = (), rate: float | None = None) -> str:
        """The fewest and the most steps: `60 to 80`, `250 to 320 under four of five`, `more than 400 under each`."""
        steps = self._steps(condition, arm, seeds, rate)
        there = steps[steps < float("inf")]
        if there.empty:
            longest = self._chosen(condition, arm, seeds, rate)["steps"].max()
            return f"more than {longest} under {_how_many(len(steps), len(steps))}"
        ends = " to ".join(dict.fromkeys(f"{end:.0f}" for end in (there.min(), there.max())))
        of = f" under {number_in_words(len(there))} of {number_in_words(len(steps))}"
        return ends + (of if len(there) < len(steps) else "")

    def median(self, condition: str, arm: str, seeds: Sequence[int] = (), rate: float | None = None) -> float:
        """The median of steps, infinite where half of the runs or more do not get there."""
        return float(self._steps(condition, arm, seeds, rate).median())

    def reaches(self, condition: str, arm: str, seeds: Sequence[int] = (), rate: float | None = None) -> str:
        """Under how many seeds it gets there: `each`, `four`, `none`."""
        steps = self._steps(condition, arm, seeds, rate)
        return _how_many(int((steps < float("inf")).sum()), len(steps))

    def seeds(self, condition: str, *arms: str, rate: float | None = None) -> int:
        """How many seeds all these arms were run under."""
        return len(self._side_by_side(condition, arms, (), rate))

    def sooner(
        self,
        condition: str,
        arm: str,
        seeds: Sequence[int] = (),
        rate: float | None = None,
        *,
        than: str = "grpo",
        later: bool = False,
    ) -> str:
        """Under how many of the seeds that both were run with it has fewer steps, or `later` more: `each`, `four`, `none`."""
        pair = self._side_by_side(condition, (arm, than), seeds, rate)
        mine, other = pair[arm], pair[than]
        return _how_many(int(((mine > other) if later else (mine < other)).sum()), len(pair))

    def _side_by_side(
        self, condition: str, arms: Sequence[str], seeds: Sequence[int], rate: float | None
    ) -> pd.DataFrame:
        pair = pd.concat([self._steps(condition, arm, seeds, rate).rename(arm) for arm in arms], axis=1).dropna()
        if pair.empty:
            raise DataError(f"{', '.join(arms)} must share seeds in {condition}, but were run under other ones.")
        return pair

    def _steps(self, condition: str, arm: str, seeds: Sequence[int], rate: float | None) -> pd.Series:
        """By seed, infinite where a run does not get there."""
        best = best_runs(self._chosen(condition, arm, seeds, rate))
        return steps_to_threshold(best).set_axis(best["seed"])

    def _chosen(self, condition: str, arm: str, seeds: Sequence[int], rate: float | None) -> pd.DataFrame:
        asked = {"condition": condition, "arm": arm, "seed": list(seeds) or None, "rate": rate}
        return self._tables.rows(STEPS, ["steps"], {name: value for name, value in asked.items() if value is not None})


def number_in_words(count: int) -> str:
    """`fifteen`, `thirty-five`; below a hundred."""
    tens, ones = divmod(count, 10)
    if count < len(_ONES):
        return _ONES[count]
    return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")


def _how_many(count: int, total: int) -> str:
    return "each" if count == total else number_in_words(count) if count else "none"
