"""The tokenizer: knows every word, gives the text back, and never rewrites what it has already said."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Config

from oar.tasks.words import (
    TEACHING_STREAM,
    build_tokenizer,
    demonstration,
    evaluation_set,
    make_tiers,
    training_problem,
)

TOKENIZER = build_tokenizer()
TIERS = make_tiers(filler=3)
token_ids = st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40)


def assert_prefixes(ids: list[int], skip_special_tokens: bool) -> None:
    texts = [str(TOKENIZER.decode(ids[:k], skip_special_tokens=skip_special_tokens)) for k in range(len(ids) + 1)]
    assert all(texts[-1].startswith(text) for text in texts)


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_everything_generated_survives_the_round_trip(index: int) -> None:
    word_problem = training_problem(TIERS, TEACHING_STREAM, 0, index)
    for text in (word_problem.problem.question, demonstration(word_problem, Random(index))):
        ids = TOKENIZER(text, add_special_tokens=False).input_ids
        assert TOKENIZER.unk_token_id not in ids
        assert TOKENIZER.decode(ids) == text
        assert_prefixes(ids, skip_special_tokens=True)


@given(token_ids, st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_text_of_a_prefix_is_a_prefix_of_the_text(ids: list[int], skip_special_tokens: bool) -> None:
    assert_prefixes(ids, skip_special_tokens)


def test_digits_operators_and_the_marker_are_single_tokens() -> None:
    ids = TOKENIZER("12 + 5 = 17 . #### 17", add_special_tokens=False).input_ids
    assert TOKENIZER.convert_ids_to_tokens(ids) == "1 2 + 5 = 1 7 . #### 1 7".split()
    assert TOKENIZER.decode(ids) == "12 + 5 = 17 . #### 17"


def test_encoding_begins_with_bos_once_and_adds_nothing_else() -> None:
    ids = TOKENIZER("Tom has 12 apples .").input_ids
    assert ids[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.decode(ids[1:]) == "Tom has 12 apples ."


def test_size_and_special_tokens() -> None:
    assert 100 <= len(TOKENIZER) <= 130
    special = {TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id, TOKENIZER.unk_token_id}
    assert special == {0, 1, 2, 3}
    assert (TOKENIZER.pad_token, TOKENIZER.eos_token, TOKENIZER.bos_token) == ("<pad>", "<eos>", "<bos>")
    assert TOKENIZER("zebra", add_special_tokens=False).input_ids == [TOKENIZER.unk_token_id]


def test_completion_lengths_are_those_the_runs_are_sized_for() -> None:
    """At most 96 new tokens are sampled in training."""
    longest = 0
    for index in range(3000):
        word_problem = training_problem(make_tiers(), TEACHING_STREAM, 0, index)
        longest = max(
            longest, len(TOKENIZER(demonstration(word_problem, Random(index)), add_special_tokens=False).input_ids) + 1
        )
    assert 80 < longest <= 96


@pytest.mark.parametrize("split", ["tuning", "curve", "final"])
def test_held_out_questions_have_no_unknown_word(split: str) -> None:
    for tier in make_tiers():
        for word_problem in evaluation_set(tier, split, 20):
            assert TOKENIZER.unk_token_id not in TOKENIZER(word_problem.problem.question).input_ids


def test_a_qwen2_folder_gives_the_same_tokenizer_again_and_again(tmp_path: Path) -> None:
    """AutoTokenizer would take Qwen's own class, which splits and joins differently; checkpoints save it anew."""
    text = demonstration(training_problem(TIERS, TEACHING_STREAM, 0, 0), Random(0))
    tokenizer: PreTrainedTokenizerBase = TOKENIZER
    for generation in ("base", "checkpoint"):
        folder = tmp_path / generation
        tokenizer.save_pretrained(folder)
        Qwen2Config().save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer(text).input_ids == TOKENIZER(text).input_ids
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text
