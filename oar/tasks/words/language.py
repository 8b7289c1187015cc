"""Every word the embedded task can say. The tokenizer's vocabulary is read off these tables, so nothing can be unknown.

All text is made of words separated by single blanks, punctuation included: one word is one token, a number is one token
per digit. For other tokenizers it is spelled in the usual way (`natural`).
"""

import re
import string
from collections.abc import Iterable

PRONOUNS = {"Tom": "He", "Ben": "He", "Sam": "He", "Anna": "She", "Mia": "She", "Eva": "She"}
THINGS = ("apples", "pens", "books", "coins", "cards", "stones")

# The question. {who} is the name or its pronoun, {other} another person, {another} another thing.
STARTS = ("{name} has {n} {thing} .", "{name} starts with {n} {thing} .", "At first {name} has {n} {thing} .")
EVENTS = {
    "+": (
        "{who} buys {n} more .",
        "{who} finds {n} {thing} .",
        "{who} gets {n} from {other} .",
    ),
    "-": (
        "{who} gives {n} to {other} .",
        "{who} loses {n} {thing} .",
        "{who} sells {n} of them .",
    ),
    "*": (
        "{who} doubles the {thing} .",
        "Now {who} has twice as many .",
    ),
    "/": (
        "{who} keeps only half of them .",
        "Half of the {thing} are lost .",
    ),
}
DISTRACTIONS = (
    "{other} has {n} {thing} .",
    "{who} also has {n} {another} .",
    "{n} days pass .",
    "{who} is {n} years old .",
)
QUESTIONS = ("How many {thing} does {name} have now ?", "How many {thing} are left ?")

# The demonstrated reasoning. No connector or phrase names the operation: only the equations carry the computation,
# which is what makes the oracle's marks the truth.
OPENINGS = (
    "At first there are {n} .",
    "We start with {n} {thing} .",
    "The count begins at {n} .",
    "{name} has {n} {thing} at first .",
)
CONNECTORS = ("Then", "Next ,", "After that ,", "Now", "So")
PHRASES = ("", "", "", "we get", "we have", "the count is")
CLOSINGS = ("That is all .", "We are done .", "So this is the answer .", "Nothing is left to do .")
FILLER = tuple("well hmm okay let me think about it again yes sure maybe perhaps indeed still here".split())

MARKER = "####"  # announces the answer, as in GSM8K
OPERATORS = "+-*/"
EQUALS = "="
STOP = "."


def natural(text: str) -> str:
    """The text as people spell it: no blank before a punctuation mark."""
    return re.sub(r" (?=[.,?])", "", text)


def words() -> list[str]:
    """Every distinct word in a fixed order: digits, operators, then the rest sorted."""
    symbols = [*string.digits, *OPERATORS, EQUALS, MARKER]
    templates: Iterable[str] = (
        *PRONOUNS.keys(),
        *PRONOUNS.values(),
        *THINGS,
        *STARTS,
        *(template for templates in EVENTS.values() for template in templates),
        *DISTRACTIONS,
        *QUESTIONS,
        *OPENINGS,
        *CONNECTORS,
        *PHRASES,
        *CLOSINGS,
        *FILLER,
    )
    rest = {word for template in templates for word in template.split() if not word.startswith("{")}
    return symbols + sorted(rest)
