"""Formulas compared by sympy, parsed by math-verify; imported by the verifier's workers alone (seconds, and it may hang).

math-verify's verdict is not the last word: it calls numbers equal that agree to six decimals, and takes what cannot be told
from zero in fifteen digits for zero. What it accepts is checked exactly where numbers are rational, else to forty digits.
"""

import logging
import re
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import parse
from math_verify import verify as math_verify_says
from math_verify.parser import LatexExtractionConfig

from oar.tasks.verifier.answers import Relation
from oar.tasks.verifier.brackets import join_thousands

# Units are gone already, and math-verify's would take the c of a + b + c for one.
_NORMALISATION = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last")
_AS_BOXED = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALISATION),)
_MODULO = re.compile(r"\\[bp]?mod(?![a-zA-Z])")  # what the parser leaves out
_TWO_NUMBERS = re.compile(r"(?<![\d.,_^])[\d.,]+\s+\d")  # with a blank between they are no product, and no sum
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
_DIGITS = 50  # of numeric checks
_TOLERANCE = sympy.Float(10, _DIGITS) ** -40

# They warn that timeouts are off (the pool's are used) and report every completion that is no mathematics.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)


class Sympy:
    """`oar.tasks.verifier.structure.Symbols` by sympy. Not bounded in time: the caller's process must be."""

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two formulas are the same; False where one cannot be parsed."""
        one, other = parsed(gold), parsed(answer)
        return one is not None and other is not None and _same_case(gold, answer) and _equal(one, other)

    def same_relation(self, gold: Relation, answer: Relation) -> bool:
        """Whether two relations say the same: one's difference of sides is a constant times the other's."""
        if gold.op != answer.op or not _same_case(gold.left + gold.right, answer.left + answer.right):
            return False
        sides = [parsed(side) for side in (gold.left, gold.right, answer.left, answer.right)]
        if not all(isinstance(side, sympy.Expr) for side in sides):
            return False
        one, other = sides[0] - sides[1], sides[2] - sides[3]  # type: ignore[operator]
        # `2x = 10` is not solved: only an equation of several variables may be asked for.
        fewest = 2 if gold.name is not None or answer.name is not None else 1
        if one.free_symbols != other.free_symbols or len(one.free_symbols) < fewest:
            return False
        ratio = sympy.simplify(one / other)
        return bool(ratio.is_number and (ratio.is_positive or (gold.op == "=" and ratio.is_nonzero)))


@lru_cache(maxsize=4096)
def parsed(latex: str) -> sympy.Basic | sympy.MatrixBase | None:
    """The formula as sympy sees it, or None. Decimals are made exact: sympy's floats compare by rounding; i is a number."""
    if _TWO_NUMBERS.search(latex) or _MODULO.search(latex):
        return None
    joined = join_thousands(latex)  # for the parser a comma separates the items of a set
    exact = _DECIMAL.sub(lambda number: rf"\frac{{{number[1]}{number[2]}}}{{1{'0' * len(number[2])}}}", joined)
    found = parse(rf"\boxed{{{exact}}}", _AS_BOXED, fallback_mode="no_fallback", parsing_timeout=None)
    if not found or isinstance(found[0], str) or found[0] in (sympy.nan, sympy.zoo, sympy.true, sympy.false):
        return None
    formula: sympy.Basic | sympy.MatrixBase = found[0]
    return formula.subs({symbol: sympy.I for symbol in formula.free_symbols if str(symbol) == "i"})


def comparable(latex: str) -> bool:
    """Whether a formula can be parsed and worked out, as a gold answer must be."""
    formula = parsed(latex)
    return formula is not None and formula.doit() is not sympy.nan


def _same_case(gold: str, answer: str) -> bool:
    """False where letters differ in case alone: the parser makes all of them small."""
    one, other = (set(re.findall("[A-Za-z]", _COMMANDS.sub("", latex))) for latex in (gold, answer))
    folded = [{letter.casefold() for letter in letters} for letters in (one, other)]
    return one == other or folded[0] != folded[1]


def _equal(gold: sympy.Basic | sympy.MatrixBase, answer: sympy.Basic | sympy.MatrixBase) -> bool:
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        one, other = gold.doit(), answer.doit()
        if one.is_Rational and other.is_Rational:
            return bool(one == other)
        # math-verify takes a lone letter for a text: it calls n and 2n/2 different.
        letter = one.is_Symbol or other.is_Symbol
        same = sympy.simplify(one - other).is_zero if letter else math_verify_says(gold, answer, timeout_seconds=None)
        return bool(same) and _numerically_alike(one, other)
    return bool(math_verify_says(gold, answer, timeout_seconds=None))


def _numerically_alike(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """False where two expressions differ at a point; True where they agree or cannot be evaluated."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    for start in (137, 211):
        point = {symbol: sympy.Rational(start + 17 * index, 100) for index, symbol in enumerate(symbols)}
        one, other = sympy.N(gold.subs(point), _DIGITS), sympy.N(answer.subs(point), _DIGITS)
        if not (one.is_number and other.is_number and one.is_finite and other.is_finite):
            continue
        if abs(one - other) > _TOLERANCE * max(abs(one), abs(other)):
            return False
    return True
