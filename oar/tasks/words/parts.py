"""Word problems in parts: a prompt asks independent questions, one line answers them all, and each part counts alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from oar.config.checks import require
from oar.tasks.problem import Problem
from oar.tasks.words import generator, language
from oar.tasks.words.generator import WordProblem
from oar.tasks.words.tiers import tier_named

PARTS = "parts"  # the name of the benchmark


@dataclass(frozen=True)
class Parts:
    """A prompt holds `count` problems of a tier. Raises ConfigError for an unknown tier."""

    tier: str = "english1"
    count: int = 3

    def __post_init__(self) -> None:
        tier_named(self.tier)
        require(self.count >= 2, "parts.count", "2 or more", self.count)


@dataclass(frozen=True, slots=True)
class PartsProblem:
    """A problem together with the word problems it is made of."""

    problem: Problem
    parts: Sequence[WordProblem]


def training_problem(kind: Parts, stream: str, seed: int, index: int) -> PartsProblem:
    """Training problem number `index` of a stream and seed, a pure function; no part is a held-out question."""
    tier, first = tier_named(kind.tier), index * kind.count
    parts = [generator.training_problem([tier], stream, seed, first + at) for at in range(kind.count)]
    return _joined(f"{stream}-{seed}-{index}", parts)


def evaluation_set(kind: Parts, split: str, n: int) -> list[PartsProblem]:
    """The first `n` problems of a held-out split ("tuning", "curve" or "final"): always the same, no part twice."""
    parts = generator.evaluation_set(tier_named(kind.tier), split, n * kind.count)
    return [_joined(f"{split}-{at:04d}", parts[at * kind.count : (at + 1) * kind.count]) for at in range(n)]


def demonstration(made: PartsProblem, rng: Random) -> str:
    """A chain of thought for each part, then all answers; for any tokenizer a line each."""
    english = made.parts[0].english
    chains = [generator.demonstration(part, rng).rpartition(language.MARKER)[0].strip() for part in made.parts]
    lines = [*_numbered(chains, english), f"{language.MARKER} {made.problem.answer}"]
    return ("\n" if english else " ").join(lines)


def share_right(final_answer: str | None, answer: str) -> float:
    """The share of the answers, in their order, that are right; 0 without any."""
    said, gold = (
        ["".join(one.split()) for one in (text or "").strip("()").split(",")] for text in (final_answer, answer)
    )
    return sum(own == right for own, right in zip(said, gold, strict=False)) / len(gold)


def _joined(identifier: str, parts: Sequence[WordProblem]) -> PartsProblem:
    english = parts[0].english
    question, solution = (
        " ".join(_numbered(texts, english))
        for texts in ([part.problem.question for part in parts], [part.problem.solution for part in parts])
    )
    answers = [part.problem.answer for part in parts]
    # A tuple: without brackets the verifier would take any order.
    answer = f"({', '.join(answers)})" if english else " , ".join(answers)
    return PartsProblem(Problem(f"{PARTS}-{identifier}", question, answer, PARTS, solution), parts)


def _numbered(texts: Sequence[str], english: bool) -> list[str]:
    return [f"{number}{'' if english else ' '}{language.STOP} {text}" for number, text in enumerate(texts, start=1)]
