"""Every word of the sheets. Keys hold no digit, so that every digit is a token of its own."""

import string

from oar.tasks.words import language

MARKER = language.MARKER
KEYS = tuple(consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou")
ASKED = "here"  # follows the asked entry where its place differs between sheets
FILLER = tuple(word for word in language.FILLER if word not in (*KEYS, ASKED))  # not "me" either


def words() -> list[str]:
    """All of them in a fixed order, digits first."""
    return [*string.digits, MARKER, *KEYS, *FILLER, ASKED]
