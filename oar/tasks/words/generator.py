"""Problems from a seed, their splits, and the chain of thought that teaches the base model to solve them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from oar.common.errors import DataError
from oar.common.seeding import derive_seed
from oar.tasks.embedded.splits import first_of_split, split_of
from oar.tasks.problem import Problem
from oar.tasks.words import language
from oar.tasks.words.tiers import Tier

SMALLEST_START, LARGEST_START = 2, 20
SMALLEST_OPERAND, LARGEST_OPERAND = 2, 9  # from 2, so that "2 apples" is never "1 apples"
FACTOR = 2  # of `*` and `/`
OPERATOR_WEIGHTS = {"+": 2, "-": 2, "*": 1, "/": 1}
LAST_RESULT_OMITTED = 0.5  # share of demonstrations whose last "= c" is left out, so that the answer must be computed

_START = re.compile(r"(\d+) ?\.")
_EQUATION = re.compile(r" (\d+) ([-+*/]) (\d+) = (\d+) ?\.")


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of the computation: `before operator operand = after`."""

    before: int
    operator: str
    operand: int
    after: int

    def __str__(self) -> str:
        return f"{self.before} {self.operator} {self.operand} = {self.after}"


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A problem together with what its demonstration is made of."""

    problem: Problem
    start: int
    operations: tuple[Operation, ...]
    name: str  # whose things are counted
    thing: str
    filler: int  # words of filler per operation in its demonstration
    english: bool  # spelled as people do


def training_problem(tiers: Sequence[Tier], stream: str, seed: int, index: int) -> WordProblem:
    """Training problem number `index` of a stream and seed: a pure function, so that resuming is only a number.

    `stream` is TEACHING_STREAM or RL_STREAM. Tiers take turns. A held-out question is never returned.
    """
    tier = tiers[index % len(tiers)]
    identifier = f"{tier.name}-{stream}-{seed}-{index}"
    return _problem(tier, "train", identifier, Random(derive_seed("words", stream, tier.name, seed, index)))


@cache  # few questions are of a held-out split, and every point of a learning curve asks for the same ones
def evaluation_set(tier: Tier, split: str, n: int) -> tuple[WordProblem, ...]:
    """The first `n` problems of a held-out split ("tuning", "curve" or "final"): always the same, no question twice."""
    rng = Random(derive_seed("words", split, tier.name))
    return tuple(first_of_split(split, n, lambda name: _problem(tier, split, f"{tier.name}-{name}", rng)))


def write_solution(start: int, operations: Sequence[Operation]) -> str:
    """The computation as text, e.g. `7 . 7 + 3 = 10 . 10 * 2 = 20 .`: the start number, then an equation per operation."""
    return " ".join(f"{each} ." for each in (start, *operations))


def read_solution(solution: str) -> tuple[int, tuple[Operation, ...]]:
    """Start number and operations of what `write_solution` wrote, in either spelling; DataError for any other text."""
    start, equations = _START.match(solution), list(_EQUATION.finditer(solution))
    if start is None or solution != start[0] + "".join(equation[0] for equation in equations):
        raise DataError(
            "A word problem's solution must be a start number and its equations, such as '7 . 7 + 3 = 10 .', "
            f"but is {solution!r}: take problems from oar.tasks.words."
        )
    operations = (Operation(int(each[1]), each[2], int(each[3]), int(each[4])) for each in equations)
    return int(start[1]), tuple(operations)


def demonstration(word_problem: WordProblem, rng: Random) -> str:
    """A chain of thought that solves the problem, ending in `#### answer`; wording drawn with `rng`."""
    opening = rng.choice(language.OPENINGS)
    parts = [opening.format(n=word_problem.start, name=word_problem.name, thing=word_problem.thing)]
    for operation in word_problem.operations:
        parts.append(rng.choice(language.CONNECTORS))
        parts.extend(rng.choices(language.FILLER, k=word_problem.filler))
        parts.append(rng.choice(language.PHRASES))
        parts.append(f"{operation} .")
    if rng.random() < LAST_RESULT_OMITTED:
        parts[-1] = f"{operation.before} {operation.operator} {operation.operand} ."
    parts.append(rng.choice(language.CLOSINGS))
    parts.append(f"{language.MARKER} {word_problem.problem.answer}")
    return _spelled(" ".join(part for part in parts if part), word_problem.english)


def _problem(tier: Tier, split: str, identifier: str, rng: Random) -> WordProblem:
    """The next problem of a tier whose question falls into `split`."""
    while True:
        start = rng.randint(SMALLEST_START, LARGEST_START)
        operations = _operations(tier, start, rng)
        name, thing = rng.choice(list(language.PRONOUNS)), rng.choice(language.THINGS)
        question = _spelled(_question(tier, start, operations, name, thing, rng), tier.english)
        if split_of(question) == split:
            answer = str(operations[-1].after)
            solution = _spelled(write_solution(start, operations), tier.english)
            problem = Problem(identifier, question, answer, tier.name, solution, level=tier.level)
            return WordProblem(problem, start, operations, name, thing, tier.filler, tier.english)


def _spelled(text: str, english: bool) -> str:
    return language.natural(text) if english else text


def _operations(tier: Tier, start: int, rng: Random) -> tuple[Operation, ...]:
    operations: list[Operation] = []
    state = start
    for _ in range(tier.operations):
        choices = {operator: _operands(operator, state, tier.largest_state) for operator in tier.operators}
        operators = [operator for operator, operands in choices.items() if operands]
        operator = rng.choices(operators, [OPERATOR_WEIGHTS[operator] for operator in operators])[0]
        operand = rng.choice(choices[operator])
        after = apply(state, operator, operand)
        operations.append(Operation(state, operator, operand, after))
        state = after
    return tuple(operations)


def _operands(operator: str, state: int, largest_state: int) -> range:
    """The operands that keep the next state a whole number in 0..largest_state; nothing is doubled or halved at 0."""
    only_factor = range(FACTOR, FACTOR + 1)
    if operator == "+":
        return range(SMALLEST_OPERAND, min(LARGEST_OPERAND, largest_state - state) + 1)
    if operator == "-":
        return range(SMALLEST_OPERAND, min(LARGEST_OPERAND, state) + 1)
    if operator == "*":
        return only_factor if 0 < state <= largest_state // FACTOR else range(0)
    return only_factor if state > 0 and state % FACTOR == 0 else range(0)


def apply(state: int, operator: str, operand: int) -> int:
    """`state operator operand` in whole numbers."""
    if operator == "+":
        return state + operand
    if operator == "-":
        return state - operand
    if operator == "*":
        return state * operand
    return state // operand


def _question(tier: Tier, start: int, operations: Sequence[Operation], name: str, thing: str, rng: Random) -> str:
    def say(templates: Sequence[str], n: int = 0) -> str:
        return rng.choice(templates).format(
            name=name,
            who=rng.choice((name, language.PRONOUNS[name])),
            other=rng.choice([person for person in language.PRONOUNS if person != name]),
            thing=thing,
            another=rng.choice([item for item in language.THINGS if item != thing]),
            n=n,
        )

    sentences = [say(language.STARTS, start)]
    sentences += [say(language.EVENTS[operation.operator], operation.operand) for operation in operations]
    for _ in range(tier.distractors):
        distraction = say(language.DISTRACTIONS, rng.randint(SMALLEST_START, LARGEST_START))
        sentences.insert(rng.randint(1, len(sentences)), distraction)  # never before the start
    return " ".join([*sentences, say(language.QUESTIONS)])
