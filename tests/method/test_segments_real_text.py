"""Segments on real solutions under a byte-level BPE: borders by the tokenizer's own offsets, half characters, long text."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oar.method.segments import BOX, HASH, Decode, Markers, Segments, extract_answer, find_answer, find_segments
from tests.byte_level import SOLUTIONS, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
EOS = TOKENIZER.convert_tokens_to_ids("<|im_end|>")


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))


def _byte_names() -> dict[int, str]:
    """How byte-level BPE writes each byte: printable ones as themselves, the others moved up by 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in names]
    return names | {byte: chr(256 + index) for index, byte in enumerate(others)}


BYTE_NAMES = _byte_names()


def token(byte: int) -> int:
    """The token of one byte, which need not be a whole character."""
    return int(TOKENIZER.convert_tokens_to_ids(BYTE_NAMES[byte]))


def by_offsets(text: str, marker: str) -> Segments | None:
    """The definition, by the character offsets that the tokenizer kept while encoding."""
    span = find_answer(text, marker)
    if span is None:
        return None
    answer = text[span.answer_start : span.answer_end]
    first, last = span.answer_start + len(answer) - len(answer.lstrip()), span.answer_start + len(answer.rstrip())
    offsets = TOKENIZER(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    inside = [k for k, (start, end) in enumerate(offsets) if start >= span.answer_start and first < end <= last]
    if not inside:
        return None
    return Segments(sum(end <= span.marker_start for _, end in offsets), inside[0], inside[-1] + 1)


@pytest.mark.parametrize("solution", SOLUTIONS, ids=lambda solution: solution["source"])
def test_real_solutions(solution: dict[str, str]) -> None:
    text, answer = solution["completion"], solution["answer"]
    marker = HASH if HASH in text else BOX
    assert extract_answer(text, marker) == answer
    ids = encode(text)
    found = find_segments([*ids, EOS], decode, marker)
    assert found == by_offsets(text, marker)
    if found is None:  # not one token is the answer's own, e.g. in `{A}`
        return
    parts = [
        ids[: found.reasoning_end],
        ids[found.reasoning_end : found.answer_start],
        ids[found.answer_start : found.answer_end],
        [*ids[found.answer_end :], EOS],
    ]
    assert [part for run in parts for part in run] == [*ids, EOS]
    reasoning, announcement, answer_text, _ = (decode(part) for part in parts)
    assert text.startswith(reasoning)
    assert marker in announcement
    assert answer_text.strip() in answer


def test_most_solutions_have_a_span() -> None:
    spans = [find_segments(encode(s["completion"]), decode, (BOX, HASH)) for s in SOLUTIONS]
    assert sum(span is not None for span in spans) >= len(SOLUTIONS) - 2


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, then \boxed{2}.", "2"),
        ("\\[\n\\boxed{\\frac{1}{2}}\n\\]", r"\frac{1}{2}"),
        ("$$x = \\boxed{ \\{1, 2\\} }$$", r"\{1, 2\}"),
        (r"\boxed{\left\{\frac{a}{b}\right.}", r"\left\{\frac{a}{b}\right."),
        (r"\boxed{\{}", r"\{"),
        (r"\boxed{1\\}", r"1\\"),
        ("\\boxed \n{7}", "7"),
        (r"\boxed{\text{é}}", r"\text{é}"),
        (r"see \boxed{3}. That \boxed was it", "3"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"done: \boxed{5}, or \boxed{", None),
        (r"done: \boxed{5}, or \boxed{\frac{1}{2}", None),
        (r"\boxed{\}", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed", None),
        (r"\boxed 5", None),
        (r"boxed{5}", None),
    ],
)
def test_boxes_in_text(text: str, answer: str | None) -> None:
    assert extract_answer(text, BOX) == answer


def test_the_first_marker_that_occurs_decides() -> None:
    assert extract_answer("#### 1\n\\boxed{2}", (BOX, HASH)) == "2"
    assert extract_answer("\\boxed{2}\n#### 1", (HASH, BOX)) == "1"
    assert extract_answer("#### 1", (BOX, HASH)) == "1"
    assert extract_answer("#### 1 \\boxed{", (BOX, HASH)) is None  # cut off: the box was meant


def test_half_characters_by_hand() -> None:
    """é is two bytes, the smiling face four: as tokens of one byte each they stay together on their side of a border."""
    e_acute = [token(byte) for byte in "é".encode()]
    smile = [token(byte) for byte in "😀".encode()]
    mark, space, seven = encode("####"), encode(" "), encode("7")
    ids = [*e_acute, *smile, *mark, *space, *smile, *seven, *e_acute, *encode("\n"), *smile]
    assert decode(ids) == "é😀#### 😀7é\n😀"
    start = 6 + len(mark) + 1
    assert find_segments(ids, decode, HASH) == Segments(6, start, start + 4 + 1 + 2)


def test_a_cut_character_at_the_end_is_the_answers() -> None:
    ids = [*encode("####"), *encode(" 7"), *[token(byte) for byte in "€".encode()[:2]]]  # two of three bytes
    found = find_segments(ids, decode, HASH)
    assert found is not None
    assert found.answer_end == len(ids)


def test_tokens_that_straddle_the_braces() -> None:
    """`{\\` ends the marker and begins the answer: the marker's. `}}$` ends the answer and what follows: the rest's."""
    text = r"so $\boxed{\frac{1}{2}}$."
    ids = encode(text)
    pieces = [decode([one]) for one in ids]
    assert "{\\" in pieces
    assert any(piece.startswith("}}") for piece in pieces)
    found = find_segments(ids, decode, BOX)
    assert found is not None
    assert decode(ids[found.reasoning_end : found.answer_start]).endswith("boxed{\\")
    assert decode(ids[found.answer_start : found.answer_end]) == "frac{1}{2"


pieces = st.sampled_from(["\\boxed{", "####", "{", "}", "\\", "7", " ", "\n", "é", "😀", "x = ", "\\frac{1}{2}", "$"])
any_tokens = st.lists(
    st.one_of(pieces.map(encode), st.integers(0, len(TOKENIZER) - 1).map(lambda one: [one])), max_size=25
).map(lambda runs: [one for run in runs for one in run])


@given(any_tokens, st.sampled_from([BOX, HASH, (BOX, HASH)]))
def test_any_tokens_come_back_in_order(ids: list[int], markers: str | tuple[str, ...]) -> None:
    """Invalid UTF-8, special tokens and markers in pieces: borders in order, the answer's own tokens, nothing lost."""
    lengths = [len(decode(ids[:k])) for k in range(len(ids) + 1)]
    assert lengths == sorted(lengths)  # what the search for borders rests on
    found = find_segments(ids, decode, markers)
    if found is None:
        return
    assert 0 <= found.reasoning_end < found.answer_start < found.answer_end <= len(ids)
    span = find_answer(decode(ids), markers)
    assert span is not None
    assert lengths[found.reasoning_end] <= span.marker_start
    assert span.answer_start <= lengths[found.answer_start]
    assert lengths[found.answer_end] <= span.answer_end
    assert decode(ids[found.answer_start : found.answer_end]).strip()


def by_prefixes(ids: Sequence[int], decode: Decode, markers: Markers) -> Segments | None:
    """The definition, by decoding every prefix."""
    text = decode(ids)
    span = find_answer(text, markers)
    if span is None:
        return None
    lengths = [len(decode(ids[:k])) for k in range(len(ids) + 1)]

    def within(limit: int) -> int:
        return max(k for k, length in enumerate(lengths) if length <= limit)

    answer = text[span.answer_start : span.answer_end]
    reasoning_end = within(span.marker_start)
    answer_start = within(span.answer_start + len(answer) - len(answer.lstrip()))
    answer_start += lengths[answer_start] < span.answer_start
    answer_end = max(answer_start, within(span.answer_start + len(answer.rstrip())))
    while answer_start < answer_end and not decode(ids[answer_end - 1 : answer_end]):
        answer_end -= 1
    return Segments(reasoning_end, answer_start, answer_end) if answer_start < answer_end else None


def decode_cleaned(ids: Sequence[int]) -> str:
    """Like tokenizers that take the blank before a full stop and before `n't` away (clean_up_tokenization_spaces)."""
    return re.sub(r" (?=[.?!,]|n't|'m|'s|'ve|'re)", "", decode(ids))


def decode_stripped(ids: Sequence[int]) -> str:
    """Like SentencePiece, which takes the first blank for the mark of a beginning."""
    return decode(ids).removeprefix(" ")


ENDINGS = [" .", " ?", " ,", " n't", " 'm", " 've", "don", "'", "t"]
long_tokens = st.lists(
    st.one_of(
        st.sampled_from(SOLUTIONS).map(lambda solution: encode(solution["completion"])[-40:]),
        pieces.map(encode),
        st.sampled_from(ENDINGS).map(encode),
        st.sampled_from([EOS, *(token(byte) for byte in "é€😀".encode())]).map(lambda one: [one]),
        st.integers(0, len(TOKENIZER) - 1).map(lambda one: [one]),
    ),
    max_size=40,
).map(lambda runs: [one for run in runs for one in run])


@settings(max_examples=300)
@given(
    long_tokens,
    st.sampled_from([BOX, HASH, (BOX, HASH)]),
    st.sampled_from([decode, decode_cleaned, decode_stripped]),
)
def test_decoding_around_the_borders_finds_what_decoding_every_prefix_finds(
    ids: list[int], markers: Markers, decode: Decode
) -> None:
    expected = by_prefixes(ids, decode, markers)
    assert find_segments(ids, decode, markers) == expected
    assert find_segments(ids, decode, markers, decode(ids)) == expected


REASONING = "We add é and 😀. " * 1500


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (REASONING + "\\boxed{7}", 500),
        (REASONING + "#### 7", 500),
        ("#### 7\n" + REASONING, 500),
        (REASONING + "\\boxed{\\frac{1}{2}}" + REASONING, 22_000),  # all that follows, once, and little more
        (REASONING + "#### " + " " * 3000 + "7", 70_000),
        (REASONING + "\\boxed{" + "{" * 3000, 0),
    ],
)
def test_little_of_a_long_completion_is_decoded(text: str, most: int) -> None:
    """`most` tokens, where the text is known; without it, once all of them more."""
    ids = encode(text)
    assert len(ids) > 10_000
    calls: list[int] = []

    def counted(some: Sequence[int]) -> str:
        calls.append(len(some))
        return decode(some)

    find_segments(ids, counted, (BOX, HASH), text)
    assert sum(calls) <= most
    assert len(calls) <= 60
    calls.clear()
    find_segments(ids, counted, (BOX, HASH))
    assert sum(calls) <= len(ids) + most
