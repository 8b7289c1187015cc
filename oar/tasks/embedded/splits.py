"""Which questions are held out: by a hash of their text, so that splits are disjoint whatever is drawn from them."""

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from oar.common.errors import ConfigError
from oar.tasks.problem import Problem

PATIENCE = 10_000  # draws in a row that give nothing new, after which there is nothing

SPLITS = {"tuning": range(0, 3), "curve": range(3, 6), "final": range(6, 10), "train": range(10, 100)}  # percent

# Training problems come in streams, so that RL at any seed never trains on what the base model was taught with.
TEACHING_STREAM, RL_STREAM = "train", "rl"  # another name of the teaching's is another base model


class HasProblem(Protocol):
    """A problem together with what else a task knows of it."""

    @property
    def problem(self) -> Problem:
        """As everybody else sees it."""
        ...


Made = TypeVar("Made", bound=HasProblem)


def split_of(question: str) -> str:
    """The split a question belongs to."""
    bucket = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 100
    return next(split for split, buckets in SPLITS.items() if bucket in buckets)


def first_of_split(split: str, n: int, make: Callable[[str], Made]) -> list[Made]:
    """`n` problems of a held-out split, no question twice; `make` gets an identifier and draws the next one of that split.

    Raises ConfigError for another split, and where there are fewer.
    """
    if split not in SPLITS or split == "train":
        raise ConfigError(f'An evaluation split is "tuning", "curve" or "final", got {split!r}.')
    chosen: dict[str, Made] = {}
    in_vain = 0
    while len(chosen) < n:
        candidate = make(f"{split}-{len(chosen):04d}")
        in_vain = in_vain + 1 if candidate.problem.question in chosen else 0
        if in_vain == PATIENCE:
            raise ConfigError(
                f"The {split} split must have {n} different problems, but {len(chosen)} is all that the generator makes: let "
                "it make more kinds (a sheet of more keys or entries), or ask for fewer (evaluation.*_problems)."
            )
        chosen.setdefault(candidate.problem.question, candidate)
    return list(chosen.values())
