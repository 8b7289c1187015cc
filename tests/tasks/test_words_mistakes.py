"""Kinds of mistakes on completions written by hand, and against the oracle that finds their tokens."""

from random import Random

import pytest

from oar.common.errors import DataError
from oar.tasks.problem import Problem
from oar.tasks.words import (
    MISTAKES,
    TEACHING_STREAM,
    build_tokenizer,
    causal_mask,
    demonstration,
    first_error,
    make_tiers,
    mistake,
    training_problem,
    written_out,
)

PROBLEM = Problem("words1-train-0-0", "", "14", "words1", solution="12 . 12 + 5 = 17 . 17 - 3 = 14 .")


@pytest.mark.parametrize(
    ("completion", "kind"),
    [
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 . That is all . #### 14", None),
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 . That is all . #### 14", None),
        ("Then 12 + 5 = 17 . So 17 - 3 = 14 . #### 14", None),  # the start number need not be said
        ("We start with 12 . Then 12 + 5 = 17 . That is all . #### 17", "left out"),
        ("We start with 12 . #### 12", "left out"),
        ("", "left out"),
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 . Now 14 + 2 = 16 . #### 16", "added"),
        ("We start with 13 . Then 13 + 5 = 18 . So 18 - 3 = 15 . #### 15", "misread"),
        ("We start with 12 . Then 12 - 5 = 7 . So 7 - 3 = 4 . #### 4", "misread"),
        ("We start with 12 . Then 12 + 6 = 18 . So 18 - 3 = 15 . #### 15", "misread"),
        ("We start with 12 . Then 12 + 5 = 17 . So 16 - 3 = 13 . #### 13", "miscarried"),
        ("We start with 12 . Then 13 + 5 = 18 . So 18 - 3 = 15 . #### 15", "miscarried"),
        ("We start with 12 . Then 12 + 5 . So 17 - 3 = 14 . #### 14", "no result"),  # only the last need not be there
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 . #### 15", "no result"),
        ("We start with 12 . Then 12 + 5 = 18 . So 18 - 3 = 15 . #### 15", "miscalculated"),
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 15 . #### 15", "miscalculated"),
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 . #### 15", "misreported"),
        ("We start with 12 . Then 12 + 5 = 17 . So 17 - 3 = 14 .", "misreported"),
        # the last marker counts
        ("We start with 12 . #### 14 . Then 12 + 5 = 17 . So 17 - 4 = 13 . #### 13", "misread"),
    ],
)
def test_kinds_by_hand(completion: str, kind: str | None) -> None:
    assert mistake(PROBLEM, completion) == kind
    assert kind is None or kind in MISTAKES


def test_a_changed_token_is_a_mistake_exactly_where_the_oracle_finds_one() -> None:
    tokenizer, rng, found = build_tokenizer(), Random(0), set()
    for index in range(500):
        word_problem = training_problem(make_tiers(), TEACHING_STREAM, 1, index)
        text = demonstration(word_problem, rng)
        assert mistake(word_problem.problem, text) is None
        ids = tokenizer(text, add_special_tokens=False).input_ids
        position = rng.choice([place for place, causal in enumerate(causal_mask(ids, tokenizer)) if causal])
        digits, operators = ([tokenizer.convert_tokens_to_ids(one) for one in text] for text in ("0123456789", "+-*/"))
        ids[position] = rng.choice(digits if ids[position] in digits else operators)
        kind = mistake(word_problem.problem, tokenizer.decode(ids))
        assert (kind is None) == (first_error(word_problem.problem, ids, tokenizer) is None)
        found.add(kind)
    assert found >= {None, "misread", "miscarried", "miscalculated"}


def test_whether_all_results_are_written() -> None:
    assert written_out("We start with 12 . Then 12 + 5 = 17 . #### 17")
    assert not written_out("We start with 12 . Then 12 + 5 . So 17 - 3 = 14 . #### 14")
    assert not written_out("Then 12 + 5 = 17 . So 17 - 3 . #### 14 = 14")
    assert written_out("")


def test_a_problem_without_a_computation_is_refused() -> None:
    with pytest.raises(DataError, match="start number and its equations"):
        mistake(Problem("p", "", "10", "words1", solution="10"), "#### 10")
