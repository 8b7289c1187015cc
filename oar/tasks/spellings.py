"""Other ways to write a final answer, by a few rules: what counts for a verifier as the same may be other tokens for a model."""

import re
from fractions import Fraction

from oar.tasks.verifier.text import fraction, normalise

LONGEST = 6  # digits behind the point; a decimal that needs more is not written
_SIZED_FRACTION = re.compile(r"\\([dt]?)frac(?![a-zA-Z])")
_SIZED_BRACKET = re.compile(r"\\(?:left|right)(?![a-zA-Z.])\s*")
_COMMA = re.compile(r",\s*(?=\S)")


def spellings(answer: str) -> list[str]:
    """Other ways to write `answer`, none twice; whether a task takes them is for its verifier to say.

    A number as LaTeX's fraction, with a slash, as a decimal, with thousands separated; anything else with other fractions,
    brackets and blanks behind commas.
    """
    value = fraction(normalise(answer))
    found = _of_text(answer) if value is None else _of_number(value)
    return [one for one in dict.fromkeys(found) if one != answer]


def _of_number(value: Fraction) -> list[str]:
    sign, size = "-" if value < 0 else "", abs(value)
    above, below = size.as_integer_ratio()
    if below == 1:
        return [f"{sign}{above}", f"{sign}{above:,}", f"{sign}{above}.0"]
    fractions = [
        f"{sign}\\frac{{{above}}}{{{below}}}",
        f"{sign}\\dfrac{{{above}}}{{{below}}}",
        f"{sign}{above}/{below}",
    ]
    whole, rest = divmod(size * 10**LONGEST, 10**LONGEST)
    return fractions if rest.denominator > 1 else [*fractions, f"{sign}{whole}.{rest.numerator:0{LONGEST}}".rstrip("0")]


def _of_text(answer: str) -> list[str]:
    return [
        _SIZED_FRACTION.sub(lambda found: r"\frac" if found[1] else r"\dfrac", answer),
        _SIZED_BRACKET.sub("", answer),
        _COMMA.sub(", ", answer),
        _COMMA.sub(",", answer),
    ]
