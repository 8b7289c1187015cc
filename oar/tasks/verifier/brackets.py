"""Brackets and separators in the text of an answer."""

import re

_OPENING, _CLOSING = "([{", ")]}"
_THOUSANDS = re.compile(r"(?<![\d.,_])(?<!_\{)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)")


def split(text: str, separators: str, *, thousands: bool = True) -> list[str]:
    """Parts at top level; with `thousands` a comma between groups of three digits belongs to a number."""
    parts, level, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        escaped = character == "\\" and position + 1 < len(text)
        if escaped and text[position + 1] in "{}":
            level += 1 if text[position + 1] == "{" else -1
        elif character in _OPENING:
            level += 1
        elif character in _CLOSING:
            level -= 1
        elif character in separators and level == 0 and not (thousands and _within_number(text, position)):
            parts.append(text[start:position])
            start = position + 1
        position += 2 if escaped and text[position + 1] in "{}\\" else 1
    return [*parts, text[start:]]


def _within_number(text: str, comma: int) -> bool:
    if text[comma] != ",":
        return False
    before, after = text[max(0, comma - 4) : comma], text[comma + 1 : comma + 5]
    return re.search(r"(?<!\d)\d{1,3}$", before) is not None and re.match(r"\d{3}(?!\d)", after) is not None


def join_thousands(text: str) -> str:
    """`1,000\\pi` as `1000\\pi`, also within the braces of a command; in other brackets and in an index a comma separates."""

    def joined(number: re.Match[str]) -> str:
        before = text[: number.start()]
        pairs = (("(", ")"), ("[", "]"), (r"\{", r"\}"))
        bracketed = any(before.count(opening) != before.count(closing) for opening, closing in pairs)
        return number[0] if bracketed else number[0].replace(",", "")

    return _THOUSANDS.sub(joined, text)


def closes_last(text: str) -> bool:
    """Whether the bracket that opens `text` is closed by its last character."""
    level = 0
    for position, character in enumerate(text):
        level += (character in _OPENING) - (character in _CLOSING)
        if level == 0:
            return position == len(text) - 1
    return False


def depth(text: str) -> int:
    """The deepest nesting of brackets."""
    level = deepest = 0
    for character in text:
        level += (character in _OPENING) - (character in _CLOSING)
        deepest = max(deepest, level)
    return deepest
