"""Where reasoning, marker and answer span are in a completion, in token ids (docs/METHOD.md §2).

The answer is found in the text and mapped back to tokens by the length of decoded prefixes, so nothing is ever
re-tokenised. A token that straddles a border belongs to the marker (or, at the end of the answer, to the rest).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]


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


def find_answer(text: str, marker: str) -> AnswerSpan | None:
    """The answer that the last `marker` of `text` announces, or None where there is none.

    A marker that ends in `{` opens a group: the answer runs to its matching brace. Any other marker announces the rest
    of its line.
    """
    marker_start = text.rfind(marker)
    if marker_start < 0:
        return None
    start = marker_start + len(marker)
    end = _matching_brace(text, start) if marker.endswith("{") else _end_of_line(text, start)
    if end is None or not text[start:end].strip():
        return None
    return AnswerSpan(marker_start, start, end)


def extract_answer(text: str, marker: str) -> str | None:
    """The announced answer without surrounding blanks, or None."""
    span = find_answer(text, marker)
    return None if span is None else text[span.answer_start : span.answer_end].strip()


def find_segments(completion_ids: Sequence[int], decode: Decode, marker: str) -> Segments | None:
    """The borders of a completion's segments in tokens, or None where no answer span can be found in whole tokens.

    `decode` must leave special tokens out and map prefixes of ids to prefixes of the text.
    """
    text = decode(completion_ids)
    span = find_answer(text, marker)
    if span is None:
        return None

    def tokens_within(characters: int) -> int:
        """The largest k whose first k tokens decode to at most `characters` characters."""
        low, high = 0, len(completion_ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(decode(completion_ids[:middle])) <= characters:
                low = middle
            else:
                high = middle - 1
        return low

    reasoning_end = tokens_within(span.marker_start)
    # The first token after those that hold any character of the marker; a blank before the answer is the marker's.
    answer_start = reasoning_end
    while len(decode(completion_ids[:answer_start])) < span.answer_start:
        answer_start += 1
    answer_end = tokens_within(span.answer_start + len(text[span.answer_start : span.answer_end].rstrip()))
    # Tokens without text (EOS) are not the answer's.
    while answer_start < answer_end and decode(completion_ids[: answer_end - 1]) == decode(completion_ids[:answer_end]):
        answer_end -= 1
    while answer_start < answer_end and not decode(completion_ids[: answer_start + 1])[span.answer_start :].strip():
        answer_start += 1
    if answer_start >= answer_end:
        return None
    return Segments(reasoning_end, answer_start, answer_end)


def _matching_brace(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    return None


def _end_of_line(text: str, start: int) -> int:
    newline = text.find("\n", start)
    return len(text) if newline < 0 else newline
