"""Segments: text forms, token borders, and the property that borders never cut through what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.method.segments import Segments, extract_answer, find_segments


def pieces(*tokens):
    """A toy tokenizer whose ids are positions in `tokens`."""
    return list(range(len(tokens))), lambda ids: "".join(tokens[i] for i in ids)


@pytest.mark.parametrize(
    ("text", "marker", "answer"),
    [
        ("so 3 + 4 = 7 . #### 7", "####", "7"),
        ("#### 1\nno wait\n#### 2\nbye", "####", "2"),
        (r"thus \boxed{\frac{1}{2}}.", r"\boxed{", r"\frac{1}{2}"),
        (r"\boxed{1} or \boxed{ 2 }", r"\boxed{", "2"),
        (r"cut off \boxed{\frac{1}{2", r"\boxed{", None),
        ("####", "####", None),
        ("####   ", "####", None),
        ("no answer", "####", None),
        ("", "####", None),
    ],
)
def test_extract_answer(text, marker, answer):
    assert extract_answer(text, marker) == answer


def test_word_tokens():
    ids, decode = pieces("so", " 3", " ####", " 1", "7")
    assert find_segments(ids, decode, "####") == Segments(2, 3, 5)


def test_straddling_tokens_belong_to_the_marker():
    ids, decode = pieces("x", " is ##", "## 1", "7", "\nok")
    assert find_segments(ids, decode, "####") == Segments(1, 3, 4)
    ids, decode = pieces("so ", r"\box", "ed{", "4", "2}", ".")
    assert find_segments(ids, decode, r"\boxed{") == Segments(1, 3, 4)


def test_blank_before_the_answer_is_the_markers():
    ids, decode = pieces("a", "####", " ", "17", "")
    assert find_segments(ids, decode, "####") == Segments(1, 3, 4)


def test_blank_after_the_answer_is_the_rests():
    ids, decode = pieces("a", r"\boxed{", "17", " ", "}")
    assert find_segments(ids, decode, r"\boxed{") == Segments(1, 2, 3)


def test_answer_without_a_token_of_its_own():
    ids, decode = pieces("a ", "#### 7")
    assert find_segments(ids, decode, "####") is None


def test_no_reasoning():
    ids, decode = pieces("####", " 5")
    assert find_segments(ids, decode, "####") == Segments(0, 1, 2)


words = st.lists(st.sampled_from(["a", " b", "1", " ", "##", "####", " 42", "\n", "{", "}"]), max_size=12)


@given(words)
def test_borders_are_ordered_and_hold_the_answer(tokens):
    ids, decode = pieces(*tokens)
    found = find_segments(ids, decode, "####")
    if found is None:
        return
    assert 0 <= found.reasoning_end < found.answer_start < found.answer_end <= len(ids)
    answer = decode(ids[found.answer_start : found.answer_end]).strip()
    assert answer
    assert (extract_answer(decode(ids), "####") or "").find(answer) >= 0
    assert "####" in decode(ids[found.reasoning_end : found.answer_start])
