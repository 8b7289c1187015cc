"""Every word of the sheets. Keys and slots hold no digit, so that every digit is a token of its own."""

import string

from oar.tasks.words.language import FILLER, MARKER

KEYS = tuple(consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou")
SLOTS = tuple(string.ascii_uppercase)  # the places of a sheet: ask C is its third entry
ASK, END = "ask", ";"


def words() -> list[str]:
    """All of them in a fixed order, digits first."""
    return [*string.digits, MARKER, ASK, END, *SLOTS, *KEYS, *FILLER]
