"""Equations that a text writes out: what they are made of, and whether they hold.

They are ground truth for free text, such as GSM8K's solutions and a model's own completions: numbers and operators of written
equations carry the computation, and the first equation that does not hold is where the arithmetic first goes wrong. What is
calculated rightly from the wrong numbers is not found.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_SIGNS = {"x": "*", "X": "*", "×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"}
_LEXEME = re.compile(
    r"(?P<number>(?:[$€£] ?)?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?: ?%)?)"
    r"|(?P<sign>[-+*/×·÷−–]|(?<=[\d ])[xX](?=[\d $(]))|(?P<bracket>[()])|(?P<equals>=)|\s"
)
_UNKNOWN = re.compile(r"[xXyY](?![A-Za-z])")
_LONGEST = 40  # lexemes of a side: a limit for texts that nobody wrote
_ARITHMETIC: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True, slots=True)
class Equation:
    """Character positions: of its numbers and operators in their order, and of its right side.

    `holds`: whether both sides are equal; None where one cannot be read.
    """

    parts: tuple[tuple[int, int], ...]
    result: tuple[int, int]
    holds: bool | None


def equations(text: str) -> list[Equation]:
    """The equations of a text that calculate something, in their order: numbers and operators, `=`, and at least a number.

    In a chain `2 + 3 = 5 * 1 = 5` each sign is one. What has an unknown in it is none.
    """
    lexemes = [one for one in _LEXEME.finditer(text) if one.lastgroup]
    found = []
    for at, sign in enumerate(lexemes):
        if sign.lastgroup == "equals":
            left = _side(text, lexemes[max(0, at - _LONGEST) : at], sign, -1)
            right = _side(text, lexemes[at + 1 : at + 1 + _LONGEST], sign, 1)
            if right and any(one.lastgroup == "sign" for one in left[1:]):
                parts = [one.span() for one in (*left, *right) if one.lastgroup != "bracket"]
                said = [text[side[0].start() : side[-1].end()] for side in (left, right)]
                found.append(Equation(tuple(parts), (right[0].start(), right[-1].end()), holds(*said)))
    return found


def _side(text: str, lexemes: Sequence[re.Match[str]], sign: re.Match[str], step: int) -> list[re.Match[str]]:
    """The lexemes on one side of an equals sign, with blanks between them at most; step: -1 left of it, 1 right.

    Empty where the side goes on with an unknown (`x - 3 =`) or with a number behind a number (`= 3 1/2`).
    """
    side: list[re.Match[str]] = []
    for one in lexemes[::step]:
        before = side[-1] if side else sign
        between = text[one.end() : before.start()] if step < 0 else text[before.end() : one.start()]
        if one.lastgroup == "equals" or between.strip(" "):
            break
        if one.lastgroup == before.lastgroup == "number":
            return []
        side.append(one)
    if side and side[0].lastgroup == "sign" and (step < 0 or side[0][0] not in "-−–"):
        return []  # 2x = 6
    side = side[::step]
    while side and not _ends_a_side(text, side, step):
        outer = side[0] if step < 0 else side[-1]
        beyond = text[: outer.start()].rstrip(" ")[-1:] if step < 0 else text[outer.end() :].lstrip(" ")[:1]
        if outer.lastgroup == "sign" and beyond.isalnum():
            return []
        side.remove(outer)
    return [] if side and step > 0 and _UNKNOWN.match(text, side[-1].end()) else side


def _ends_a_side(text: str, side: Sequence[re.Match[str]], step: int) -> bool:
    """Whether its outer lexeme can stand there: a number, a bracket of the right kind, or a minus right before a number."""
    outer = side[0] if step < 0 else side[-1]
    if outer.lastgroup == "sign":
        of_a_number = step < 0 and len(side) > 1 and outer[0] in "-−–" and side[1].start() == outer.end()
        return of_a_number and not text[: outer.start()][-1:].isalnum()
    return outer[0] != (")" if step < 0 else "(")


def holds(left: str, right: str) -> bool | None:
    """Whether two sides are equal, where the right one may be rounded to its places; None where one cannot be read.

    A quotient may be rounded to a whole number. `%` is a hundredth or nothing, whichever fits.
    """
    values, results = _values(left), _values(right)
    if not values or not results:
        return None
    places = len(_plain(right).partition(".")[2]) if re.fullmatch(r"-?[\d.]+", _plain(right)) else 0
    rounding = Fraction(1, 2 * 10**places) if places or "/" in _plain(left) else Fraction(0)
    return any(abs(value - result) <= rounding for value in values for result in results)


def _plain(side: str) -> str:
    for sign, usual in _SIGNS.items():
        side = side.replace(sign, usual)
    return re.sub(r"[\s$€£,%]", "", side)


def _values(side: str) -> set[Fraction]:
    """The exact values of a calculation, with `%` as nothing and as a hundredth; empty where it cannot be read."""
    return {
        value
        for reading in (side, re.sub(r"([\d.,]+) ?%", r"(\1/100)", side))
        if (value := _value(_plain(reading))) is not None
    }


def _value(plain: str) -> Fraction | None:
    """Of numbers, operators and brackets; None for anything else and for a division by zero."""
    plain = re.sub(r"(?<![\d.])0+(?=\d)", "", plain)  # Python knows no number that begins with a zero
    plain = re.sub(r"(?<=[\d)])\(|(?<=\))(?=\d)", lambda found: f"*{found[0]}", plain)  # 2(3 + 4)
    try:
        return _evaluate(ast.parse(plain, mode="eval").body, plain)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluate(node: ast.expr, text: str) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_evaluate(node.left, text), _evaluate(node.right, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, text)
    if isinstance(node, ast.Constant):
        return Fraction(ast.get_source_segment(text, node) or "")
    raise ValueError("no arithmetic")
