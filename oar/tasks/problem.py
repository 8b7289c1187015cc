"""The one record every data set and benchmark is brought into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a known final answer.

    `benchmark` names the set it belongs to (`words1`, ...); `id` is unique within that set. `columns`: the row of the data
    set that it was read from, for rewards. `scored_as`: how the worker of `oar.tasks.verifier.scored` makes a procedural
    problem again, to score an answer; None where an answer is compared with the gold one.
    """

    id: str
    question: str
    answer: str
    benchmark: str
    solution: str = ""
    level: int | None = None
    subject: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    scored_as: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems under one name; `origin` says, as JSON-ready values, which file or which revision they came from."""

    name: str
    problems: Sequence[Problem]
    origin: Mapping[str, object]
