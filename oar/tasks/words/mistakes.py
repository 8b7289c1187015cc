"""What goes wrong in a completion, read from its text: the first departure from the problem's computation, by kind.

The oracle (oracle.py) finds the token where that is; a step that was never written has no token of its own, but has a kind.
"""

import re
from itertools import zip_longest

from oar.tasks.problem import Problem
from oar.tasks.words import language
from oar.tasks.words.generator import read_solution

LEFT_OUT, ADDED = "left out", "added"
MISREAD, MISCARRIED, NO_RESULT = "misread", "miscarried", "no result"
MISCALCULATED, MISREPORTED = "miscalculated", "misreported"
# kind: what it is, for a table
MISTAKES = {
    LEFT_OUT: "fewer equations than the problem has operations",
    ADDED: "more equations than operations",
    MISREAD: "as many equations, but a start number, operator or operand that is not the problem's",
    MISCARRIED: "an equation that does not begin with the number before it",
    NO_RESULT: "an equation whose result is not written out, and nothing wrong before it",
    MISCALCULATED: "an equation with another result",
    MISREPORTED: "all equations right, but another answer, or none",
}

_NUMBER = re.compile(r"\d+")
_EQUATION = re.compile(
    rf"(?P<before>\d+) (?P<operator>[{re.escape(language.OPERATORS)}]) (?P<operand>\d+)"
    rf"(?: {re.escape(language.EQUALS)} (?P<after>\d+))?"
)


def mistake(problem: Problem, completion: str) -> str | None:
    """The first of MISTAKES in a completion; None where every equation and the answer are the problem's.

    The number of equations is looked at first, since those after a missing one cannot be held against an operation. The last
    result need not be written, as in demonstrations, where the answer is right. DataError for a problem whose solution is no
    computation.
    """
    start, operations = read_solution(problem.solution)
    reasoning, answer = _split(completion)
    equations = list(_EQUATION.finditer(reasoning))
    if len(equations) != len(operations):
        return LEFT_OUT if len(equations) < len(operations) else ADDED
    opening = _NUMBER.search(reasoning, 0, equations[0].start())
    if opening and int(opening[0]) != start:
        return MISREAD
    for equation, operation in zip(equations, operations, strict=True):
        if int(equation["before"]) != operation.before:
            return MISCARRIED
        if (equation["operator"], int(equation["operand"])) != (operation.operator, operation.operand):
            return MISREAD
        if equation["after"] is None:
            return None if operation is operations[-1] and answer == problem.answer else NO_RESULT
        if int(equation["after"]) != operation.after:
            return MISCALCULATED
    return None if answer == problem.answer else MISREPORTED


def correction(problem: Problem, completion: str) -> str | None:
    """The problem's own equation, e.g. `7 + 3 = 10 .`, where a completion first departs from it; None where it does not.

    Of the operations that is the first whose equation is wrong or missing. Where all equations are right and what follows
    them is not, it is the last one. It is spelled as the problem is.
    """
    if mistake(problem, completion) is None:
        return None
    said = [str(operation) for operation in read_solution(problem.solution)[1]]
    written = [equation[0] for equation in _EQUATION.finditer(_split(completion)[0])]
    pairs = zip_longest(said, written[: len(said)], fillvalue="")
    wrong = (own for own, other in pairs if own != other and not own.startswith(f"{other} {language.EQUALS}"))
    stated = f"{next(wrong, said[-1])} {language.STOP}"
    return stated if problem.solution.endswith(f" {language.STOP}") else language.natural(stated)


def written_out(completion: str) -> bool:
    """Whether every equation of a completion has its result."""
    return all(equation["after"] for equation in _EQUATION.finditer(_split(completion)[0]))


def _split(completion: str) -> tuple[str, str | None]:
    """The reasoning, and the answer after the last marker; None where there is none."""
    reasoning, marker, answer = completion.rpartition(language.MARKER)
    return (reasoning, answer.strip()) if marker else (completion, None)
