"""The one record every data set and benchmark is brought into."""

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
