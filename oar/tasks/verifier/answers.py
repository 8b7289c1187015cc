"""What an answer may be, once it is read (`oar/tasks/verifier/structure.py`): words, a formula, several answers, a relation."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from oar.tasks.verifier.text import SCALES

UNITS = {"": Fraction(1), "%": Fraction(1, 100)} | {name: Fraction(scale) for name, scale in SCALES.items()}


@dataclass(frozen=True, slots=True)
class Words:
    """Prose, e.g. a name or the letter of a choice."""

    text: str


@dataclass(frozen=True, slots=True)
class Formula:
    """One expression; `value` where it is a plain rational number, which may be counted in a `unit` of UNITS.

    Where there is no value, `latex` holds the unit too.
    """

    latex: str
    value: Fraction | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a stated base."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers. `kind` is their brackets (`(]`), `set` and `union` (in any order), `ratio` or `matrix 2x3`.

    variable: that of the inequality which was read as an interval; the interval itself is equal without.
    """

    kind: str
    items: tuple["Answer", ...]
    variable: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """`left op right` with op `=`, `<` or `\\le`; `name` where the left side only names the right one."""

    op: str
    left: str
    right: str
    name: str | None = None


Answer: TypeAlias = Words | Formula | Based | Group | Relation
