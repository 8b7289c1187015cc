"""Word problems as people spell them: the same problems, and the same marks under any tokenizer."""

from random import Random

import pytest
from transformers import PreTrainedTokenizerBase

from oar.model.load import load_tokenizer
from oar.tasks.offsets import token_ends
from oar.tasks.task import Task
from oar.tasks.words import (
    TEACHING_STREAM,
    WordProblem,
    build_tokenizer,
    causal_mask,
    correction,
    demonstration,
    first_error,
    make_tiers,
    mistake,
    token_roles,
    training_problem,
    written_mask,
)
from oar.tasks.words.generator import read_solution
from oar.tasks.words.language import natural
from tests.byte_level import byte_level_tokenizer
from tests.smollm2 import SMOLLM2, needs_smollm2

WORDS = build_tokenizer()
PLAIN = "We start with 12 . Then , 12 + 5 = 17 . So 17 - 3 = 14 . That is all . #### 14"


@pytest.fixture(params=["byte level", pytest.param("smollm2", marks=needs_smollm2)])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_level_tokenizer() if request.param == "byte level" else load_tokenizer(SMOLLM2)


def english(index: int) -> WordProblem:
    return training_problem(make_tiers(english=True), TEACHING_STREAM, 0, index)


def marked(text: str, mask: list[bool], tokenizer: PreTrainedTokenizerBase) -> str:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return " ".join(tokenizer.decode([token]).strip() for token, chosen in zip(ids, mask, strict=True) if chosen)


def test_the_spelling() -> None:
    assert natural("Tom has 12 apples . After that , Tom buys 3 more . How many are left ?") == (
        "Tom has 12 apples. After that, Tom buys 3 more. How many are left?"
    )
    one = english(4)
    assert (one.problem.benchmark, one.problem.level) == ("english5", 5)
    for text in (one.problem.question, one.problem.solution, demonstration(one, Random(0))):
        assert text == natural(text)
        assert " ." not in text
    assert read_solution(one.problem.solution) == (one.start, one.operations)
    assert mistake(one.problem, demonstration(one, Random(1))) is None


def test_the_tokens_that_are_marked(tokenizer: PreTrainedTokenizerBase) -> None:
    text = natural(PLAIN)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert marked(text, causal_mask(ids, tokenizer), tokenizer) == "1 2 1 2 + 5 1 7 1 7 - 3 1 4"
    assert marked(text, written_mask(ids, tokenizer), tokenizer) == "1 2 . 1 2 + 5 = 1 7 . 1 7 - 3 = 1 4 . ."
    roles = token_roles([*ids, tokenizer.eos_token_id], tokenizer)
    at = tokenizer.convert_ids_to_tokens(ids).index("4")
    assert roles[at - 1 : at + 1] == ["after", "after"]
    assert roles[-1] == "rest"
    blank = tokenizer(" 5", add_special_tokens=False).input_ids
    assert token_roles(blank, tokenizer) == ["blank", "start"]


def test_the_marks_are_those_of_the_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """What is marked, digit by digit, does not depend on spelling and tokenizer."""
    for index in range(50):
        one = training_problem(make_tiers(), TEACHING_STREAM, 0, index)
        words = demonstration(one, Random(index))
        for mask in (causal_mask, written_mask):
            said = [
                marked(text, mask(reader(text, add_special_tokens=False).input_ids, reader), reader).replace(" ", "")
                for text, reader in ((words, WORDS), (natural(words), tokenizer))
            ]
            assert said[0] == said[1], words


def test_a_changed_character_is_found_in_its_token(tokenizer: PreTrainedTokenizerBase) -> None:
    rng = Random(0)
    for index in range(60):
        one = english(index)
        text = demonstration(one, rng)
        assert first_error(one.problem, tokenizer(text, add_special_tokens=False).input_ids, tokenizer) is None
        place = rng.choice([at for at, sign in enumerate(text[: text.index("####")]) if sign.isdigit()])
        changed = (
            text[:place] + rng.choice([digit for digit in "123456789" if digit != text[place]]) + text[place + 1 :]
        )
        ids = tokenizer(changed, add_special_tokens=False).input_ids
        ends = token_ends(ids, tokenizer)
        assert first_error(one.problem, ids, tokenizer) == next(at for at, end in enumerate(ends) if place < end)
        assert mistake(one.problem, changed) is not None


def test_tokens_end_where_their_text_does(tokenizer: PreTrainedTokenizerBase) -> None:
    """Special tokens hold nothing, and a character of several tokens ends in one of them."""
    ids = [*tokenizer("12 日本.", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    ends = token_ends(ids, tokenizer)
    assert ends == sorted(ends)
    assert ends[-2:] == [6, 6]
    for token, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end - start > 1 and "\ufffd" not in tokenizer.decode(ids[token : token + 1]):
            assert tokenizer.decode(ids[token : token + 1]) == "12 日本."[start:end]


def test_a_task_marks_them(tokenizer: PreTrainedTokenizerBase) -> None:
    one = english(0)
    task = Task.named(tokenizer, "####", "question_answer")
    right = tokenizer(f" {demonstration(one, Random(3))}", add_special_tokens=False).input_ids
    marks = task.marks(one.problem, right)
    assert marks["causal"] == marks["error"] == causal_mask(right, tokenizer)
    assert sum(marks["written"]) > sum(marks["causal"])
    wrong = tokenizer(f" At first there are {one.start + 1}. #### 99", add_special_tokens=False).input_ids
    assert sum(task.marks(one.problem, wrong)["error"]) == 1


def test_feedback_is_in_the_spelling_of_the_problem() -> None:
    one = english(1)
    assert correction(one.problem, "#### 1") == f"{one.operations[0]}."
