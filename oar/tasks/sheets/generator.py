"""Sheets: look up a hidden digit for each of several keys. Problems from a seed, and the completions that teach their form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from oar.common.seeding import derive_seed
from oar.config.checks import one_of, require
from oar.tasks.embedded.splits import first_of_split, split_of
from oar.tasks.problem import Problem
from oar.tasks.sheets.language import FILLER, KEYS, MARKER

SHEETS = "sheets"  # the name of the benchmark
ONE, SHARE, ALL = REWARDS = ("one", "share", "all")
_, EVERY, CHECKSUM = ANSWERS = (ONE, "every", "checksum")
MODULUS = 10  # of the checksum


@dataclass(frozen=True)
class Sheet:
    """How large a sheet is, what it earns and what its answer is.

    A prompt lists `entries` distinct ones of `keys` keys; a completion writes each with its digit, one of 1 ... `digits`, and
    then the answer. Which digit is right for a key is the same in every problem, and drawn with `table`. reward: whether the
    entry in place `asked` is right (one), the share of entries that are (share), or whether all are (all). answer: the digit of
    the asked entry (one), all keys and digits again (every), or the sum of the digits modulo 10 (checksum).
    """

    entries: int = 8
    keys: int = 16
    digits: int = 8
    reward: str = ONE
    answer: str = ONE
    asked: int = 4
    table: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.entries <= self.keys, "sheet.entries", "1 to sheet.keys", self.entries)
        require(1 <= self.asked <= self.entries, "sheet.asked", "1 to sheet.entries", self.asked)
        require(self.keys <= len(KEYS), "sheet.keys", f"at most {len(KEYS)}", self.keys)
        require(2 <= self.digits <= 9, "sheet.digits", "2 to 9", self.digits)
        one_of("sheet.reward", self.reward, REWARDS)
        one_of("sheet.answer", self.answer, ANSWERS)

    @property
    def right(self) -> Mapping[str, str]:
        """The hidden table: the right digit of each key."""
        return _table(self.keys, self.digits, self.table)

    def answer_to(self, keys: Sequence[str], digits: Sequence[str]) -> str:
        """The answer that goes with these entries."""
        if self.answer == EVERY:
            return " ".join(f"{key} {digit}" for key, digit in zip(keys, digits, strict=True))
        if self.answer == CHECKSUM:
            return str(sum(map(int, digits)) % MODULUS)
        return digits[self.asked - 1]


@dataclass(frozen=True, slots=True)
class SheetProblem:
    """A problem together with what its demonstration is made of: its keys in order."""

    problem: Problem
    sheet: Sheet
    keys: tuple[str, ...]


def training_problem(sheet: Sheet, stream: str, seed: int, index: int) -> SheetProblem:
    """Training problem number `index` of a stream and seed, a pure function; never one of a held-out question."""
    return _problem(sheet, "train", f"{stream}-{seed}-{index}", Random(derive_seed(SHEETS, stream, seed, index)))


def evaluation_set(sheet: Sheet, split: str, n: int) -> list[SheetProblem]:
    """The first `n` problems of a held-out split ("tuning", "curve" or "final"): always the same, no question twice."""
    rng = Random(derive_seed(SHEETS, split))
    return first_of_split(split, n, lambda name: _problem(sheet, split, name, rng))


def demonstration(made: SheetProblem, known: float, filler: int, rng: Random, between: str = " ") -> str:
    """A completion in the right form, whose digits are right with probability `known`, else drawn from all.

    `filler`: meaningless words before each entry; `between`: what stands between entries.
    """
    right, sheet = made.sheet.right, made.sheet
    digits = [right[key] if rng.random() < known else str(rng.randint(1, sheet.digits)) for key in made.keys]
    entries = [
        " ".join([*rng.choices(FILLER, k=filler), key, digit]) for key, digit in zip(made.keys, digits, strict=True)
    ]
    return between.join([*entries, f"{MARKER} {sheet.answer_to(made.keys, digits)}"])


def _problem(sheet: Sheet, split: str, identifier: str, rng: Random) -> SheetProblem:
    """The next problem whose question falls into `split`."""
    while True:
        keys = rng.sample(KEYS[: sheet.keys], sheet.entries)
        question = " ".join(keys)
        if split_of(question) == split:
            break
    digits = [sheet.right[key] for key in keys]
    solution = " ".join(f"{key} {digit}" for key, digit in zip(keys, digits, strict=True))
    counted = {"reward": sheet.reward, "answer": sheet.answer, "asked": keys[sheet.asked - 1]}
    problem = Problem(identifier, question, sheet.answer_to(keys, digits), SHEETS, solution, columns={SHEETS: counted})
    return SheetProblem(problem, sheet, tuple(keys))


@cache
def _table(keys: int, digits: int, seed: int) -> Mapping[str, str]:
    rng = Random(derive_seed(SHEETS, "table", seed))
    return {key: str(rng.randint(1, digits)) for key in KEYS[:keys]}
