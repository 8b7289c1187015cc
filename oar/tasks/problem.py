"""The one record every data set and benchmark is brought into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a known final answer.

    `benchmark` names the set it belongs to (`words1`, ...); `id` is unique within that set.
    """

    id: str
    question: str
    answer: str
    benchmark: str
    solution: str = ""
    level: int | None = None
    subject: str = ""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems under one name; `origin` says, as JSON-ready values, which file or which revision they came from."""

    name: str
    problems: Sequence[Problem]
    origin: Mapping[str, object]
