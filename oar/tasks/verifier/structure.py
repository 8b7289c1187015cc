"""The structure of an answer: tuples, intervals, sets, unions, matrices and relations, down to single formulas.

Structure is read here and compared piece by piece, so that an open interval is never taken for a point or a set, and so
that most answers never need sympy.
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Protocol

from oar.tasks.verifier.answers import UNITS, Answer, Based, Formula, Group, Relation, Words
from oar.tasks.verifier.brackets import closes_last, depth, split
from oar.tasks.verifier.text import (
    MAX_CHARACTERS,
    compact,
    fraction,
    half_of_day,
    is_words,
    normalise,
    words,
    written_number,
)

MAX_DEPTH = 20  # of nested brackets
MAX_ITEMS = 50  # of a list

_MATRIX = re.compile(r"\\begin\{([pbBvV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_DELIMITED_MATRIX = re.compile(r"[(\[]\s*(\\begin\{(matrix|array)\}.*\\end\{\2\})\s*[)\]]", re.DOTALL)
_RELATION = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|(?<![\\!:])=|<|>")
_INEQUALITY = re.compile(r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<|>")
_COMMANDS = re.compile(r"\\text\{[^{}]*\}|\\[A-Za-z]+|_\{?\d+\}?")
_NAME = re.compile(r"[A-Za-z\s{}()\[\]'|,_]*")  # what is left of a name without its commands
_BASED = re.compile(r"(?:\\text\{)?([0-9A-Za-z]+)\}?_\{?\(?(\d+|\\text\{[a-z]+\})\)?\}?")
_TEXT = re.compile(r"\\text\{[^{}]*\}")
_OPERATOR = re.compile(r"[-+*/^_=<>|!\\]")
_VARIABLE = re.compile(r"\s*[A-Za-z]\s*")
_CHOICE = re.compile(r"[A-Ea-e]")  # the letter of a choice, which may be written either way
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


class Symbols(Protocol):
    """What needs a computer algebra system (`oar/tasks/verifier/symbols.py`)."""

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two formulas are the same; False where one cannot be parsed."""
        ...

    def same_relation(self, gold: Relation, answer: Relation) -> bool:
        """Whether two relations say the same of the same variables."""
        ...


def read(answer: str) -> Answer | None:
    """The structure of an answer as written, or None where it is too long, too deep or empty."""
    if len(answer) > MAX_CHARACTERS:
        return None
    text = normalise(answer)
    return _read(text) if text and depth(text) <= MAX_DEPTH else None


def same(gold: Answer, answer: Answer, symbols: Symbols) -> bool:
    """Whether two answers are the same: pieces pairwise, in any order within sets and unions."""
    match gold, answer:
        case Words(), Words():
            return words(gold.text) == words(answer.text)
        case (Words(text=text), Formula(latex=latex)) | (Formula(latex=latex), Words(text=text)):
            return _OPERATOR.search(_TEXT.sub("", latex)) is None and words(text) == words(latex)
        case Formula(), Formula():
            return _same_formula(gold, answer, symbols)
        case Based(), Based():
            return gold == answer
        case Based(), Formula():  # the problem states the base
            return gold.digits == compact(answer.latex)
        case Formula(), Based():
            return answer.base == "10" and gold.latex == answer.digits
        case Group(kind="set", items=(only,)), (Formula() | Words()):  # {2} for 2
            return same(only, answer, symbols)
        case ((Formula() | Words()), Group(kind="set", items=(only,))):
            return same(gold, only, symbols)
        case Group(kind="set"), Group(kind="()", variable=""):  # a point by names, where no inequality was written
            return _same_group(_by_name(gold), answer, symbols)
        case Group(kind="()", variable=""), Group(kind="set"):
            return _same_group(gold, _by_name(answer), symbols)
        case Group(), Group():
            return _same_group(gold, answer, symbols)
        case Relation(), Relation():
            if gold.name is not None and answer.name is not None and not _solved_for_another(gold, answer):
                return gold.name == answer.name and _same_text(gold.right, answer.right, symbols)
            return symbols.same_relation(gold, answer)
        case Relation(), _ if gold.name is not None:
            return _same_text(gold.right, answer, symbols)
        case _, Relation() if answer.name is not None:
            return _same_text(gold, answer.right, symbols)
        case _:
            return False


def formulas(answer: Answer) -> list[str]:
    """Every formula of an answer that must be parsed for it to be compared."""
    match answer:
        case Formula(value=None):
            return [answer.latex]
        case Group():
            return [latex for item in answer.items for latex in formulas(item)]
        case Relation():
            sides = [answer.right] if answer.name is not None else [answer.left, answer.right]
            return [latex for side in sides if (tree := _read(side)) is not None for latex in formulas(tree)]
        case _:
            return []


def _same_text(gold: "Answer | str", answer: "Answer | str", symbols: Symbols) -> bool:
    trees = [_read(side) if isinstance(side, str) else side for side in (gold, answer)]
    return trees[0] is not None and trees[1] is not None and same(trees[0], trees[1], symbols)


def _solved_for_another(gold: Relation, answer: Relation) -> bool:
    """Whether the two may be one equation, as `y = 2x` and `x = y/2` are."""
    names = gold.name or "", answer.name or ""
    variables = names[0] != names[1] and all(_VARIABLE.fullmatch(name) for name in names)
    return variables and names[0] in answer.right and names[1] in gold.right


def _same_formula(gold: Formula, answer: Formula, symbols: Symbols) -> bool:
    if gold.value is not None and answer.value is not None:
        # 75% for 75 and for 0.75, 2 million for 2 and for 2000000: problems that ask for percent or millions differ in whether
        # their gold answer says so.
        if gold.value == answer.value and (gold.unit == answer.unit or not gold.unit or not answer.unit):
            return True
        return gold.value * UNITS[gold.unit] == answer.value * UNITS[answer.unit]
    if compact(gold.latex) == compact(answer.latex):
        return True
    if _CHOICE.fullmatch(gold.latex) and _CHOICE.fullmatch(answer.latex):
        return gold.latex.casefold() == answer.latex.casefold()
    spellings = product(_for_symbols(gold, answer), _for_symbols(answer, gold))
    return any(symbols.equal(one, other) for one, other in spellings)


def _for_symbols(formula: Formula, other: Formula) -> list[str]:
    """The LaTeX of a formula: a known number's value in full (`2 1/2`, `3e8`), and without its unit where `other` has none."""
    if formula.value is None:
        return [formula.latex]
    values = [formula.value * UNITS[formula.unit], *([formula.value] if formula.unit and not other.unit else [])]
    return [rf"\frac{{{value.numerator}}}{{{value.denominator}}}" for value in values]


def _same_group(gold: Group, answer: Group, symbols: Symbols) -> bool:
    if gold.kind != answer.kind or len(gold.items) != len(answer.items):
        return False
    if gold.kind not in ("set", "union"):
        pairs = zip(gold.items, answer.items, strict=True)
        return all(_of_one_variable(*pair) and same(*pair, symbols) for pair in pairs)
    left = list(answer.items)
    for item in gold.items:
        # The parts of a union bound the same variable, whatever it is called.
        fitting = [other for other in left if gold.kind == "union" or _of_one_variable(item, other)]
        # What is written alike first: it needs no algebra.
        alike = [other for other in fitting if other == item] or fitting
        found = next((other for other in alike if same(item, other, symbols)), None)
        if found is None:
            return False
        left = [other for other in left if other is not found]
    return True


def _of_one_variable(one: Answer, other: Answer) -> bool:
    """False for `x > 2` and `y > 2`, which are different things in a list of several."""
    variables = {item.variable for item in (one, other) if isinstance(item, Group) and item.variable}
    return len(variables) < 2


def _read(text: str) -> Answer | None:
    text = text.strip()
    readers: Sequence[Callable[[str], Answer | None]] = (
        _read_matrix, _read_plain, _read_named_list, _read_union, _read_list, _read_relation, _read_bracketed, _read_ratio
    )  # fmt: skip
    for reader in readers:
        if (found := reader(text)) is not None:
            return found
    return Formula(text) if text else None


def _read_plain(text: str) -> Answer | None:
    unit = next((unit for unit in UNITS if unit and text.endswith(unit)), "")
    number = text.removesuffix(unit)
    if (value := fraction(number)) is not None:
        return Formula(number.strip(), value, unit)
    if unit == "%":
        return Formula(rf"\frac{{{number}}}{{100}}", unit=unit)
    if is_words(text) and "," not in text:
        return Words(text)
    if (based := _BASED.fullmatch(text)) is not None and (
        based[1].isupper() or based[1].isdigit() or based[1][0].isdigit()
    ):
        return Based(based[1], based[2])
    return None


def _read_matrix(text: str) -> Answer | None:
    if (delimited := _DELIMITED_MATRIX.fullmatch(text)) is not None:
        text = delimited[1]
    matrix = _MATRIX.fullmatch(text)
    if matrix is None or r"\begin" in matrix[2] or matrix[1] in ("vmatrix", "Vmatrix"):
        return None
    rows = [row.split("&") for row in re.split(r"\\\\(?:\[\w*\])?", matrix[2].strip().removesuffix(r"\\"))]
    if any(len(row) != len(rows[0]) for row in rows):
        return None
    return _group(f"matrix {len(rows)}x{len(rows[0])}", [cell for row in rows for cell in row])


def _read_named_list(text: str) -> Answer | None:
    """`n = 2, 3, 4`: one name for all of a list."""
    left, equals, right = text.partition("=")
    if not equals or "=" in right or not _is_name(left) or len(split(right, ",;")) < 2 or len(split(left, ",;")) > 1:
        return None
    return Relation("=", left, right, compact(left))


def _read_union(text: str) -> Answer | None:
    text = re.sub(r"^\s*[A-Za-z]\s*\\in(?![a-zA-Z])\s*", "", text)
    parts = re.split(r"\\cup(?![a-zA-Z])", text)
    if len(parts) > 1:
        return _group("union", parts)
    return _read_bracketed(text)


def _read_list(text: str) -> Answer | None:
    parts = split(text, ",;")
    signed = [choice for part in parts for choice in _signs(part)]
    # `x < 1 or x > 2` is a union; that of two variables is not.
    inequalities = all(_INEQUALITY.search(part) for part in parts)
    variables = set(re.findall("[A-Za-z]", _COMMANDS.sub("", text)))
    return _group("union" if inequalities and len(variables) == 1 else "set", signed) if len(signed) > 1 else None


def _read_relation(text: str) -> Answer | None:
    parts = _RELATION.split(text)
    ops = [op.strip() for op in _RELATION.findall(text)]
    if not ops:
        return None
    if all(op == "=" for op in ops):  # a chain of equalities says what its ends say
        left, right = parts[0], parts[-1]
        if _VARIABLE.fullmatch(right) and not _is_name(left):  # `5 = x`
            left, right = right, left
        return Relation("=", left, right, compact(left) if _is_name(left) or not re.search("[A-Za-z]", left) else None)
    if (interval := _interval(parts, ops)) is not None:
        return interval
    if len(ops) != 1:
        return None
    left, right = parts if ops[0] in ("<", r"\le") else parts[::-1]
    return Relation("<" if ops[0] in "<>" else r"\le", left, right)


def _interval(parts: Sequence[str], ops: Sequence[str]) -> Answer | None:
    """`a < x \\le b` and `x > a` as the interval they are, where one side is a bare variable."""
    if len(parts) == 2 and _VARIABLE.fullmatch(parts[1]):
        parts, ops = parts[::-1], [_FLIPPED[ops[0]]] if ops[0] in _FLIPPED else ops
    if len(parts) == 2 and _VARIABLE.fullmatch(parts[0]) and ops[0] in _FLIPPED:
        low, high = ("-\\infty", parts[1]) if ops[0] in ("<", r"\le") else (parts[1], "\\infty")
        closed = ops[0] in (r"\le", r"\ge")
        brackets = ("(", "]" if closed else ")") if low == "-\\infty" else ("[" if closed else "(", ")")
        return _group("".join(brackets), [low, high], parts[0].strip())
    if len(parts) == 3 and _VARIABLE.fullmatch(parts[1]) and "=" not in ops:
        if all(op in (">", r"\ge") for op in ops):
            parts, ops = parts[::-1], [_FLIPPED[op] for op in reversed(ops)]
        if all(op in ("<", r"\le") for op in ops):
            brackets = ("(" if ops[0] == "<" else "[", ")" if ops[1] == "<" else "]")
            return _group("".join(brackets), [parts[0], parts[2]], parts[1].strip())
    return None


def _read_bracketed(text: str) -> Answer | None:
    if text.startswith("{") and text.endswith("}") and closes_last(text):
        return _read(text[1:-1])
    for opening, closing, kind in ((r"\{", r"\}", "set"), (r"\langle", r"\rangle", "()")):
        inner = text.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(text) - len(opening) - len(closing) and depth(inner) >= 0:
            return _group(kind, [choice for part in split(inner, ",;", thousands=False) for choice in _signs(part)])
    if len(text) > 2 and text[0] in "([" and text[-1] in ")]" and closes_last(text):
        parts = split(text[1:-1], ",;", thousands=False)
        if len(parts) > 1:
            return _group(text[0] + text[-1], parts)
        if text[0] + text[-1] == "()":
            return _read(parts[0])
    return None


def _read_ratio(text: str) -> Answer | None:
    parts = split(text, ":")
    return _group("ratio", parts) if len(parts) > 1 else None


def _group(kind: str, parts: Sequence[str], variable: str = "") -> Group | None:
    items = [_read(part) for part in parts] if len(parts) <= MAX_ITEMS else [None]
    found = tuple(item for item in items if item is not None)
    return Group(kind, found, variable) if len(found) == len(items) else None


def _by_name(group: Group) -> Group:
    """`y = 2, x = 1` as (1, 2), in the order of the alphabet; any other group as it is."""
    named = {item.name: item.right for item in group.items if isinstance(item, Relation) and item.op == "="}
    if len(named) < len(group.items) or not all(name and re.fullmatch("[A-Za-z]", name) for name in named):
        return group
    return _group("()", [named[name] for name in sorted(named, key=str)]) or group


def _signs(text: str) -> list[str]:
    """`a \\pm b` as its two values; several signs in every combination, `\\mp` against the first."""
    count = len(re.findall(r"\\pm(?![a-zA-Z])", text))
    if not 1 <= count <= 3:
        return [text]
    choices = []
    for signs in product("+-", repeat=count):
        one = re.sub(r"\\mp(?![a-zA-Z])", "-" if signs[0] == "+" else "+", text)
        for sign in signs:
            one = re.sub(r"\\pm(?![a-zA-Z])", sign, one, count=1)
        choices.append(one.strip().removeprefix("+"))
    return choices


def _is_name(text: str) -> bool:
    """Whether a side of an equation names something and computes nothing: `x`, `f(x)`, `\\angle ABC`, `a_1`."""
    return bool(text.strip()) and _NAME.fullmatch(_COMMANDS.sub("", text)) is not None


class NeedsSymbolsError(Exception):
    """Raised by `PlainOnly`: the verdict hangs on algebra."""


class PlainOnly:
    """`Symbols` that knows no algebra, for finding out whether a verdict needs it."""

    def equal(self, gold: str, answer: str) -> bool:
        """Raises NeedsSymbolsError."""
        raise NeedsSymbolsError

    def same_relation(self, gold: Relation, answer: Relation) -> bool:
        """Raises NeedsSymbolsError."""
        raise NeedsSymbolsError


def judge(gold: str, answer: str, symbols: Symbols) -> bool:
    """Whether an answer as written equals the gold answer as written. Whatever `symbols` raises comes through."""
    numbers = written_number(gold), written_number(answer)
    if all(numbers):
        return numbers[0] == numbers[1]
    if compact(gold) == compact(answer):
        return True
    halves = half_of_day(gold), half_of_day(answer)
    if all(halves) and halves[0] != halves[1]:
        return False
    trees = read(gold), read(answer)
    return trees[0] is not None and trees[1] is not None and same(trees[0], trees[1], symbols)
