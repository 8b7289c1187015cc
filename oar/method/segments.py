"""Where reasoning, marker and answer span are in a completion, in token ids (docs/METHOD.md §2).

The answer is found in the text and mapped back to tokens by the length of what is decoded up to them, so nothing is ever
re-tokenised. A token that straddles a border belongs to the marker (or, at the end of the answer, to the rest). The
verifier finds answers with the same `find_answer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

Decode = Callable[[Sequence[int]], str]
Markers = str | tuple[str, ...]

BOX = "\\boxed{"
HASH = "####"

LOOK_BACK = 16  # tokens before the place where the marker is looked for first
MARGIN = 16  # characters


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Character positions in the completion's text: marker [marker_start, answer_start), answer [answer_start, answer_end)."""

    marker_start: int
    answer_start: int
    answer_end: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Token positions in the completion: reasoning [0, reasoning_end), marker up to answer_start, answer up to answer_end."""

    reasoning_end: int
    answer_start: int
    answer_end: int

    @classmethod
    def without_answer(cls, length: int) -> "Segments":
        """Of a completion that needs no answer span: all but its last token, at which it ends, is reasoning."""
        end = max(length - 1, 0)
        return cls(end, end, end)


def find_answer(text: str, markers: Markers) -> AnswerSpan | None:
    """The answer that the last marker of `text` announces, or None where there is none.

    A marker that ends in `{`, such as `BOX`, opens a group: blanks may stand before the brace, and the answer runs to the
    matching one; escaped braces do not count. Any other marker, such as `HASH`, announces the rest of its line. Of several
    markers the first one that occurs in the text decides. An empty answer or a group that is never closed is no answer,
    whatever was announced before it. Takes time linear in the text.
    """
    for marker in (markers,) if isinstance(markers, str) else markers:
        found = _last_group(text, marker[:-1]) if marker.endswith("{") else _last_line(text, marker)
        if found is not None:
            marker_start, start, end = found
            closed = end is not None and text[start:end].strip()
            return AnswerSpan(marker_start, start, end) if end is not None and closed else None
    return None


def extract_answer(text: str, markers: Markers) -> str | None:
    """The announced answer without surrounding blanks, or None."""
    span = find_answer(text, markers)
    return None if span is None else text[span.answer_start : span.answer_end].strip()


def find_segments(
    completion_ids: Sequence[int], decode: Decode, markers: Markers, text: str | None = None
) -> Segments | None:
    """The borders of a completion's segments in tokens, or None where no answer span can be found in whole tokens.

    `decode` must leave special tokens out and map prefixes of ids to prefixes of the text; a prefix that ends within a
    character may end in one replacement character (byte-level BPE), so the tokens of one character are never parted.
    `text`: what it makes of all ids, where that is known. Beside that it is called some twenty times, on the few tokens
    around the borders.
    """
    text = decode(completion_ids) if text is None else text
    span = find_answer(text, markers)
    if span is None:
        return None
    start, before = _start_near(completion_ids, text, decode, span.marker_start)

    @cache
    def characters(count: int) -> int:
        """How many characters the first `count` tokens decode to."""
        return before + len(decode(completion_ids[start:count]))

    def tokens_within(limit: int, at_least: int) -> int:
        """The largest k whose first k tokens decode to at most `limit` characters; `at_least` is known to."""
        low, step = at_least, 1
        while low + step <= len(completion_ids) and characters(low + step) <= limit:
            low, step = low + step, step * 2
        while step > 1:  # the first low + step are too many
            step //= 2
            if low + step <= len(completion_ids) and characters(low + step) <= limit:
                low += step
        return low

    answer = text[span.answer_start : span.answer_end]
    first = span.answer_start + len(answer) - len(answer.lstrip())
    last = span.answer_start + len(answer.rstrip())
    reasoning_end = tokens_within(span.marker_start, start)
    # A blank before the answer is the marker's where it is a token of its own.
    answer_start = tokens_within(first, reasoning_end)
    if characters(answer_start) < span.answer_start:
        answer_start += 1  # this token holds the end of the marker and the start of the answer
    answer_end = tokens_within(last, min(answer_start, len(completion_ids)))
    # Tokens without text (EOS) are not the answer's.
    while answer_start < answer_end and not decode(completion_ids[answer_end - 1 : answer_end]):
        answer_end -= 1
    if answer_start >= answer_end:
        return None
    return Segments(reasoning_end, answer_start, answer_end)


def _start_near(completion_ids: Sequence[int], text: str, decode: Decode, limit: int) -> tuple[int, int]:
    """A token shortly before the character `limit` of the text, and how many characters come before it.

    From there on tokens decode to what they do in the whole: what a tokenizer decodes otherwise at a start (half a character,
    a blank, a blank before a full stop) lies within the MARGIN that is kept to `limit`.
    """
    back = LOOK_BACK
    start = len(completion_ids) * limit // len(text) - back
    while start > 0:
        rest = decode(completion_ids[start:])
        before = len(text) - len(rest)
        if before + MARGIN <= limit and text.endswith(rest):
            return start, before
        start, back = start - back, back * 2
    return 0, 0


def _last_group(text: str, command: str) -> tuple[int, int, int | None] | None:
    """Of the last `command` that is followed by a brace: its start, its content's start and end (None: never closed)."""
    end = len(text)
    while (marker_start := text.rfind(command, 0, end)) >= 0:
        brace = marker_start + len(command)
        while brace < end and text[brace].isspace():
            brace += 1
        if text[brace : brace + 1] == "{":
            return marker_start, brace + 1, _matching_brace(text, brace + 1)
        end = marker_start
    return None


def _last_line(text: str, marker: str) -> tuple[int, int, int] | None:
    """Of the last `marker`: its start, and the start and end of the rest of its line."""
    marker_start = text.rfind(marker)
    if marker_start < 0:
        return None
    start = marker_start + len(marker)
    newline = text.find("\n", start)
    return marker_start, start, len(text) if newline < 0 else newline


def _matching_brace(text: str, start: int) -> int | None:
    depth, position = 1, start
    while position < len(text):
        if text[position] == "\\":
            position += 1  # the next character is escaped
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None
