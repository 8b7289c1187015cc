"""Where training problems and evaluation sets come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from oar.errors import ConfigError
from oar.tasks.problem import Problem
from oar.tasks.words import RL_STREAM, TIER_NAMES, evaluation_set, tier_named, training_problem


class ProblemSource(Protocol):
    """A stream of training problems that can be entered anywhere, so that resuming needs only the step."""

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """The `n` problems of training step `step` (from 0)."""
        ...


@dataclass(frozen=True, slots=True)
class WordsSource:
    """Fresh word problems; the tiers take turns, and the wheel goes on where the last step left it."""

    tiers: Sequence[str]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ConfigError("data.source.tiers must name at least one tier, but is empty.")
        for name in self.tiers:
            tier_named(name)

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """Never one of a held-out set, and never from the stream that taught the base model."""
        tiers = [tier_named(name) for name in self.tiers]
        return [training_problem(tiers, RL_STREAM, seed, step * n + i).problem for i in range(n)]


def load_benchmark(name: str, split: str, n: int) -> list[Problem]:
    """The first `n` problems of a benchmark's split (`curve` or `final`). Raises ConfigError for an unknown name."""
    if name not in TIER_NAMES:
        raise ConfigError(f"benchmark.sets must name known benchmarks ({', '.join(TIER_NAMES)}), but names {name!r}.")
    return [word_problem.problem for word_problem in evaluation_set(tier_named(name), split, n)]
