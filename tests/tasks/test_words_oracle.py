"""The oracle on completions written by hand, and on demonstrations."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.common.errors import DataError
from oar.tasks.problem import Problem
from oar.tasks.words import (
    TEACHING_STREAM,
    build_tokenizer,
    causal_mask,
    demonstration,
    first_error,
    make_tiers,
    token_roles,
    training_problem,
    written_mask,
)
from oar.tasks.words.generator import Operation, read_solution, write_solution

TOKENIZER = build_tokenizer()
PROBLEM = Problem("words1-train-0-0", "", "14", "words1", solution="12 . 12 + 5 = 17 . 17 - 3 = 14 .")


def encode(text: str) -> list[int]:
    return [*TOKENIZER(text, add_special_tokens=False).input_ids, TOKENIZER.eos_token_id]


def test_causal_tokens_are_the_start_and_the_equations_without_equals() -> None:
    ids = encode("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 . We are done . #### 14")
    tokens = TOKENIZER.convert_ids_to_tokens(ids)
    marked = [token for token, causal in zip(tokens, causal_mask(ids, TOKENIZER), strict=True) if causal]
    assert " ".join(marked) == "1 2 1 2 + 5 1 7 1 7 - 3"


def test_written_are_the_causal_tokens_and_the_signs_of_the_reasoning() -> None:
    ids = encode("Well , 12 . #### 3 . Then 12 + 5 = 17 . = So 17 - 3 . We are done . #### 14 . =")
    tokens = TOKENIZER.convert_ids_to_tokens(ids)
    marked = [place for place, mark in enumerate(written_mask(ids, TOKENIZER)) if mark]
    signs = set(marked) - {place for place, causal in enumerate(causal_mask(ids, TOKENIZER)) if causal}
    assert " ".join(tokens[place] for place in sorted(signs)) == ". . = . = . ."
    assert len(marked) - len(signs) == sum(causal_mask(ids, TOKENIZER))
    assert max(marked) < len(tokens) - 1 - tokens[::-1].index("####")


def test_what_each_token_is() -> None:
    ids = encode("We start with 12 . Then 12 + 5 = 17 . Day 3 . So 17 - 3 . #### 14")
    assert " ".join(token_roles(ids, TOKENIZER)) == (
        "word word word start start word word before before operator operand equals after after word "
        "word number word word before before operator operand word rest rest rest rest"
    )
    unanswered = encode("12 + 5 = 17 . 3")
    assert token_roles(unanswered, TOKENIZER)[-3:] == ["word", "number", "word"]  # the last is the end token


# The first wrong token has ^ before it; no ^: none can be named.
@pytest.mark.parametrize(
    "marked",
    [
        # right: with the last result, and without
        "We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 . That is all . #### 14",
        "We start with 12 . Then 12 + 5 = 17 . So 17 - 3 . That is all . #### 14",
        # the start number, misread
        "We start with 1^3 . Then 13 + 5 = 18 . So 18 - 3 = 15 . #### 15",
        # a result, miscomputed and carried on
        "We start with 12 . Then 12 + 5 = 1^8 . So 18 - 3 = 15 . #### 15",
        # a state, miscopied
        "We start with 12 . Then 12 + 5 = 17 . So 1^6 - 3 = 13 . #### 13",
        # the operator, the operand
        "We start with 12 . Then 12 ^- 5 = 7 . So 7 - 3 = 4 . #### 4",
        "We start with 12 . Then 12 + ^6 = 18 . So 18 - 3 = 15 . #### 15",
        # an operation skipped: seen where the next one stands in its place
        "We start with 12 . Then 12 ^- 3 = 9 . #### 9",
        # a number that ends too early is wrong at the token after it, one too long at its extra digit
        "We start with 1 ^. Then 12 + 5 = 17 . So 17 - 3 . #### 14",
        "We start with 12 . Then 12 + 5 = 17^7 . So 17 - 3 . #### 14",
        # one equation too many
        "We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 . Now ^14 + 2 . #### 16",
        # only the answer
        "We start with 12 . Then 12 + 5 = 17 . So 17 - 3 . #### 1^5",
        # the last marker counts, as it does for the verifier
        "We start with 12 . #### 14 . Then 12 + ^6 = 18 . So 18 - 3 . #### 15",
        # something missing has no token of its own
        "We start with 12 . Then 12 + 5 = 17 . That is all . #### 17",
        "We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 .",
        "",
    ],
)
def test_first_error(marked: str) -> None:
    before, wrong, after = marked.partition("^")
    expected = len(TOKENIZER(before, add_special_tokens=False).input_ids) if wrong else None
    assert first_error(PROBLEM, encode(before + after), TOKENIZER) == expected


def test_a_completion_cut_off_in_a_number_is_wrong_at_its_end_at_the_latest() -> None:
    ids = encode("We start with 12 . Then 12 + 5 = 1")[:-1]
    assert first_error(PROBLEM, ids, TOKENIZER) == len(ids) - 1


def test_demonstrations_have_no_error_and_about_two_fifths_causal_tokens() -> None:
    causal = reasoning = 0
    for index in range(1000):
        word_problem = training_problem(make_tiers(), TEACHING_STREAM, 0, index)
        ids = encode(demonstration(word_problem, Random(index)))
        assert first_error(word_problem.problem, ids, TOKENIZER) is None
        causal += sum(causal_mask(ids, TOKENIZER))
        reasoning += TOKENIZER.convert_ids_to_tokens(ids).index("####")
    assert 0.38 < causal / reasoning < 0.48


def test_any_changed_digit_or_operator_of_the_reasoning_is_found_exactly() -> None:
    rng = Random(0)
    for index in range(500):
        word_problem = training_problem(make_tiers(), TEACHING_STREAM, 1, index)
        ids = encode(demonstration(word_problem, rng))
        position = rng.choice([place for place, causal in enumerate(causal_mask(ids, TOKENIZER)) if causal])
        pool = encode("0123456789" if ids[position] in encode("0123456789") else "+ - * /")[:-1]
        ids[position] = rng.choice([token for token in pool if token != ids[position]])
        assert first_error(word_problem.problem, ids, TOKENIZER) == position


numbers = st.integers(0, 10**6)
operations = st.lists(st.builds(Operation, numbers, st.sampled_from("+-*/"), numbers, numbers), max_size=8)


@given(numbers, operations)
def test_a_solution_is_read_back_as_it_was_written(start: int, steps: list[Operation]) -> None:
    assert read_solution(write_solution(start, steps)) == (start, tuple(steps))


def test_a_written_solution_by_hand() -> None:
    steps = (Operation(7, "+", 3, 10), Operation(10, "*", 2, 20))
    assert write_solution(7, steps) == "7 . 7 + 3 = 10 . 10 * 2 = 20 ."


def test_problems_carry_the_computation_they_were_made_from() -> None:
    for index in range(200):
        word_problem = training_problem(make_tiers(), TEACHING_STREAM, 2, index)
        assert read_solution(word_problem.problem.solution) == (word_problem.start, word_problem.operations)


@pytest.mark.parametrize(
    "other",
    ["", "7", "We start with 7 .", "7 . 7 + 3 .", "7 . 7 + 3 = 10 . so", "7 . and 7 + 3 = 10 .", "7 . 7 ^ 3 = 343 ."],
)
def test_a_solution_that_is_no_computation_is_refused(other: str) -> None:
    problem = Problem("p", "", "10", "words1", solution=other)
    with pytest.raises(DataError, match="start number and its equations"):
        first_error(problem, encode("#### 10"), TOKENIZER)
