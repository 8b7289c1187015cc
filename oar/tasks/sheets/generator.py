"""Sheets: look up a hidden digit for each of several keys. Problems from a seed, and the completions that teach their form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.config.checks import one_of, require
from oar.tasks.embedded.splits import PATIENCE, first_of_split, split_of
from oar.tasks.problem import Problem
from oar.tasks.sheets.language import ASKED, FILLER, KEYS, MARKER

SHEETS = "sheets"  # the name of the benchmark
ONE, SHARE, ALL = REWARDS = ("one", "share", "all")
_, EVERY, CHECKSUM = ANSWERS = (ONE, "every", "checksum")
MODULUS = 10  # of the checksum


@dataclass(frozen=True)
class Sheet:
    """How large a sheet is, what it earns and what its answer is.

    A prompt lists `entries` distinct ones of `keys` keys; a completion writes each with its digit, one of 1 ... `digits`, and
    then the answer. Which digit is right for a key is the same in every problem, and drawn with `table`. reward: whether the
    asked entry is right (one), the share of entries that are (share), or whether all are (all). answer: the digit of the asked
    entry (one), all keys and digits again (every), or the sum of the digits modulo 10 (checksum). asked: place of the asked
    entry in every problem; None: another place in each, which a word behind that entry names.
    """

    entries: int = 8
    keys: int = 16
    digits: int = 8
    reward: str = ONE
    answer: str = ONE
    asked: int | None = 4
    table: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.entries <= self.keys, "sheet.entries", "1 to sheet.keys", self.entries)
        if self.asked is not None:
            require(1 <= self.asked <= self.entries, "sheet.asked", "1 to sheet.entries, or null", self.asked)
        require(self.keys <= len(KEYS), "sheet.keys", f"at most {len(KEYS)}", self.keys)
        require(2 <= self.digits <= 9, "sheet.digits", "2 to 9", self.digits)
        one_of("sheet.reward", self.reward, REWARDS)
        one_of("sheet.answer", self.answer, ANSWERS)

    @property
    def right(self) -> Mapping[str, str]:
        """The hidden table: the right digit of each key."""
        return _table(self.keys, self.digits, self.table)

    def answer_to(self, keys: Sequence[str], digits: Sequence[str], asked: str) -> str:
        """The answer that goes with these entries. `asked`: one of the keys."""
        if self.answer == EVERY:
            return " ".join(f"{key} {digit}" for key, digit in zip(keys, digits, strict=True))
        if self.answer == CHECKSUM:
            return str(sum(map(int, digits)) % MODULUS)
        return digits[keys.index(asked)]


@dataclass(frozen=True, slots=True)
class SheetProblem:
    """A problem together with the sheet it is one of."""

    problem: Problem
    sheet: Sheet

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of its entries, in order."""
        return tuple(self.problem.solution.split()[::2])

    @property
    def asked(self) -> str:
        """The key of the asked entry."""
        return self.problem.columns[SHEETS]["asked"]


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
        " ".join([*rng.choices(FILLER, k=filler), key, digit, *_behind(sheet, key, made.asked)])
        for key, digit in zip(made.keys, digits, strict=True)
    ]
    return between.join([*entries, f"{MARKER} {sheet.answer_to(made.keys, digits, made.asked)}"])


def _problem(sheet: Sheet, split: str, identifier: str, rng: Random) -> SheetProblem:
    """The next problem whose question falls into `split`. Raises ConfigError where none does."""
    for _ in range(PATIENCE):
        keys = rng.sample(KEYS[: sheet.keys], sheet.entries)
        asked = keys[sheet.asked - 1] if sheet.asked is not None else rng.choice(keys)
        question = " ".join(word for key in keys for word in (key, *_behind(sheet, key, asked)))
        if split_of(question) == split:
            break
    else:
        raise ConfigError(
            f"A sheet of {sheet.entries} of {sheet.keys} keys must have prompts of the {split} split, but has none: raise "
            "sheet.entries or sheet.keys."
        )
    digits = [sheet.right[key] for key in keys]
    solution = " ".join(f"{key} {digit}" for key, digit in zip(keys, digits, strict=True))
    counted = {"reward": sheet.reward, "answer": sheet.answer, "asked": asked}
    answer = sheet.answer_to(keys, digits, asked)
    problem = Problem(identifier, question, answer, SHEETS, solution, columns={SHEETS: counted})
    return SheetProblem(problem, sheet)


def _behind(sheet: Sheet, key: str, asked: str) -> list[str]:
    """What stands behind an entry, in the prompt and in a completion: a word that names the asked one, if its place does not."""
    return [ASKED] if sheet.asked is None and key == asked else []


@cache
def _table(keys: int, digits: int, seed: int) -> Mapping[str, str]:
    rng = Random(derive_seed(SHEETS, "table", seed))
    return {key: str(rng.randint(1, digits)) for key in KEYS[:keys]}
