"""Questions with worked answers, to teach a model the form in which it is asked to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from oar.common.errors import ConfigError, DataError
from oar.common.seeding import derive_seed
from oar.config.checks import require
from oar.method.segments import HASH
from oar.tasks import sheets
from oar.tasks.data.sources import DatasetSource, PartsSource, SheetsSource
from oar.tasks.words import TEACHING_STREAM, demonstration, parts, tier_named, training_problem
from oar.tasks.words.parts import Parts


class Demonstrations(Protocol):
    """A stream of demonstrations."""

    def pair(self, seed: int, index: int) -> tuple[str, str]:
        """Question and worked answer number `index`; never those of a held-out question."""
        ...

    def origin(self) -> Mapping[str, object]:
        """Where they come from, as JSON-ready values."""
        ...


@dataclass(frozen=True)
class WordDemonstrations:
    """Word problems of some tiers, which take turns, from a stream that RL never sees."""

    tiers: Sequence[str]

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ConfigError("model.teach.demonstrations.tiers must name at least one tier, but is empty.")
        for name in self.tiers:
            tier_named(name)

    def pair(self, seed: int, index: int) -> tuple[str, str]:
        """Question and chain of thought."""
        made = training_problem([tier_named(name) for name in self.tiers], TEACHING_STREAM, seed, index)
        return made.problem.question, demonstration(made, Random(derive_seed("demonstration", seed, index)))

    def origin(self) -> Mapping[str, object]:
        """The tiers."""
        return {"generated": list(self.tiers)}


@dataclass(frozen=True)
class PartsDemonstrations:
    """Word problems in parts, a line for each, from a stream that RL never sees."""

    parts: Parts | None

    def __post_init__(self) -> None:
        if self.parts is None:
            raise ConfigError(
                "model.teach.demonstrations.parts must be the parts of the data, but there are none: choose data=parts."
            )

    def pair(self, seed: int, index: int) -> tuple[str, str]:
        """Questions, and a chain of thought for each."""
        assert self.parts is not None
        made = parts.training_problem(self.parts, TEACHING_STREAM, seed, index)
        return made.problem.question, parts.demonstration(made, Random(derive_seed("demonstration", seed, index)))

    def origin(self) -> Mapping[str, object]:
        """Tier and number of the parts."""
        assert self.parts is not None
        return PartsSource(self.parts).origin()


@dataclass(frozen=True)
class SheetDemonstrations:
    """Sheets in form, an entry a line, whose digits are right with probability `known`, from a stream that RL never sees."""

    sheet: sheets.Sheet | None
    known: float

    def __post_init__(self) -> None:
        if self.sheet is None:
            raise ConfigError(
                "model.teach.demonstrations.sheet must be the sheet of the data, but there is none: choose data=sheets."
            )
        require(0 <= self.known <= 1, "model.teach.demonstrations.known", "a probability", self.known)

    def pair(self, seed: int, index: int) -> tuple[str, str]:
        """Keys, and a line for each."""
        assert self.sheet is not None
        made = sheets.training_problem(self.sheet, TEACHING_STREAM, seed, index)
        rng = Random(derive_seed("demonstration", seed, index))
        return made.problem.question, sheets.demonstration(made, self.known, 0, rng, between="\n")

    def origin(self) -> Mapping[str, object]:
        """The kind of sheet."""
        assert self.sheet is not None
        return SheetsSource(self.sheet).origin()


@dataclass(frozen=True)
class SolutionDemonstrations:
    """The solutions of a data set, each with its answer behind `####`; epoch by epoch, each in an order of its own."""

    source: DatasetSource | None

    def __post_init__(self) -> None:
        if not isinstance(self.source, DatasetSource):
            raise ConfigError(
                "model.teach.demonstrations.source must be a data set with solutions, but is none: choose data=gsm8k."
            )

    def pair(self, seed: int, index: int) -> tuple[str, str]:
        """Question, and solution with answer. Raises DataError for a problem without a solution."""
        assert self.source is not None
        (problem,) = self.source.problems(seed, index, 1)
        if not problem.solution:
            raise DataError(
                f"Demonstrations need solutions, but {problem.id} of {self.source.name} has none: choose data=gsm8k."
            )
        return problem.question, f"{problem.solution}\n{HASH} {problem.answer}"

    def origin(self) -> Mapping[str, object]:
        """That of the data set."""
        assert self.source is not None
        return self.source.origin()
