"""The generated problems: right, held out, bounded and not guessable. The arithmetic is redone here from the text."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from oar.common.errors import ConfigError
from oar.common.provenance import ROOT
from oar.tasks.data.sources import WordsSource
from oar.tasks.embedded.splits import split_of
from oar.tasks.words import (
    RL_STREAM,
    TEACHING_STREAM,
    WORD_TIERS,
    WordProblem,
    demonstration,
    evaluation_set,
    generator,
    make_tiers,
    tier_named,
    training_problem,
)

TIERS = make_tiers()
PAGE = ROOT / "docs" / "EMBEDDED.md"
HELD_OUT = ("tuning", "curve", "final")
LARGEST_STATE = {"words1": 20, "words2": 30, "words3": 50, "words4": 50, "words5": 50}
OPERATIONS = {"words1": 2, "words2": 3, "words3": 4, "words4": 4, "words5": 6}
OPERATORS = {"words1": "+-", "words2": "+-*", "words3": "+-*/", "words4": "+-*/", "words5": "+-*/"}


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_the_page_has_the_tiers_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(.*)` \| (\d+) \| (\d+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [
        (tier.name, str(tier.operations), tier.operators, str(tier.largest_state), str(tier.distractors))
        for tier in TIERS
    ]


@pytest.mark.parametrize("name", WORD_TIERS)
def test_every_demonstration_computes_its_answer(name: str) -> None:
    for index in range(300):
        word_problem = training_problem([tier_named(name)], TEACHING_STREAM, 0, index)
        reasoning, _, answer = demonstration(word_problem, Random(index)).partition(" #### ")
        equations = re.findall(r"(\d+) ([-+*/]) (\d+)(?: = (\d+))?", reasoning)
        assert len(equations) == OPERATIONS[name]
        state = numbers(reasoning)[0]
        assert 2 <= state <= 20
        for before, operator, operand, after in equations:
            assert int(before) == state
            assert operator in OPERATORS[name]
            assert 2 <= int(operand) <= 9
            assert operator in "+-" or operand == "2"
            assert operator != "/" or state % 2 == 0
            exact = {"+": state + int(operand), "-": state - int(operand), "*": state * 2, "/": state / 2}[operator]
            state = int(exact)
            assert after in ("", str(state))
            assert 0 <= state <= LARGEST_STATE[name]
        assert str(state) == answer == word_problem.problem.answer


@pytest.mark.parametrize("name", WORD_TIERS)
def test_the_question_tells_the_same_story_as_the_computation(name: str) -> None:
    signs = {"buys": "+", "finds": "+", "gets": "+", "gives": "-", "loses": "-", "sells": "-"}
    for index in range(300):
        word_problem = training_problem([tier_named(name)], TEACHING_STREAM, 1, index)
        sentences = word_problem.problem.question.split(" . ")
        assert numbers(sentences[0]) == [word_problem.start]
        told = []
        for sentence in sentences[1:-1]:
            if "twice" in sentence or "doubles" in sentence:
                told.append(("*", 2))
            elif "half" in sentence.lower():
                told.append(("/", 2))
            else:
                told += [(sign, numbers(sentence)[0]) for verb, sign in signs.items() if f" {verb} " in sentence]
        assert told == [(operation.operator, operation.operand) for operation in word_problem.operations]
        assert len(sentences) - 2 - len(told) == {"words4": 1, "words5": 2}.get(name, 0)


@pytest.mark.parametrize("name", WORD_TIERS)
def test_no_answer_is_worth_guessing(name: str) -> None:
    answers = Counter(
        training_problem([tier_named(name)], TEACHING_STREAM, 0, index).problem.answer for index in range(4000)
    )
    assert max(answers.values()) / 4000 < 0.07
    assert len(answers) >= LARGEST_STATE[name] - 2


def test_plus_and_minus_are_drawn_twice_as_often() -> None:
    problems = [training_problem([tier_named("words5")], TEACHING_STREAM, 0, index) for index in range(1000)]
    drawn = Counter(operation.operator for problem in problems for operation in problem.operations)
    assert 2.5 < (drawn["+"] + drawn["-"]) / (drawn["*"] + drawn["/"]) < 3.7  # at weights of 1: 1.6


@pytest.mark.parametrize("name", WORD_TIERS)
def test_held_out_sets_share_no_question_with_each_other_or_with_training(name: str) -> None:
    tier = tier_named(name)
    sets = {split: [each.problem for each in evaluation_set(tier, split, 100)] for split in HELD_OUT}
    held_out = [problem.question for problems in sets.values() for problem in problems]
    assert len(set(held_out)) == len(held_out) == 300
    assert len({problem.id for problems in sets.values() for problem in problems}) == 300
    assert all(problem.id.startswith(f"{name}-{split}-") for split, problems in sets.items() for problem in problems)
    trained = {training_problem([tier], TEACHING_STREAM, 0, index).problem.question for index in range(1000)}
    assert not trained & set(held_out)
    assert {split_of(question) for question in trained} == {"train"}


def test_about_a_tenth_is_held_out() -> None:
    splits = Counter(split_of(f"question {index}") for index in range(20000))
    assert 0.09 < 1 - splits["train"] / 20000 < 0.11


def test_a_smaller_evaluation_set_is_the_beginning_of_a_larger_one() -> None:
    tier = tier_named("words1")
    assert evaluation_set(tier, "final", 30) == evaluation_set(tier, "final", 60)[:30]


def test_a_question_drawn_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = tier_named("words1")
    fresh = iter(evaluation_set(tier, "final", 10))
    twice = iter([word_problem for word_problem in fresh for _ in range(2)])
    monkeypatch.setattr(generator, "_problem", lambda *_: next(twice))
    questions = [each.problem.question for each in evaluation_set(tier, "final", 10)]
    assert len(set(questions)) == 10


def test_training_problems_need_no_history() -> None:
    forward = [training_problem(TIERS, TEACHING_STREAM, 3, index) for index in range(20)]
    backward = [training_problem(TIERS, TEACHING_STREAM, 3, index) for index in reversed(range(20))]
    assert forward == backward[::-1]
    assert [each.problem.benchmark for each in forward[:5]] == list(WORD_TIERS)
    assert [each.problem.question for each in forward] != [
        training_problem(TIERS, TEACHING_STREAM, 4, i).problem.question for i in range(20)
    ]


def digest(problems: list[WordProblem]) -> str:
    text = "\n".join(each.problem.id + each.problem.question + each.problem.answer for each in problems)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_draws_are_those_that_published_results_were_made_with() -> None:
    """The base model was taught with this stream, and every result was measured on these sets: neither may move."""
    assert digest([training_problem(TIERS, TEACHING_STREAM, 0, index) for index in range(500)]) == "8ff406fa85ed43b1"
    assert digest([training_problem(TIERS, TEACHING_STREAM, 3, index) for index in range(500)]) == "df6ba606c7ba40de"
    first, last = TIERS[0], TIERS[-1]
    assert [digest(evaluation_set(first, split, 100)) for split in HELD_OUT] == [
        "528b049e8b42ca41",
        "bd1f4cd91a0ed8c0",
        "26e493c2d3c5d5d1",
    ]
    assert digest(evaluation_set(last, "final", 100)) == "8ede0fa1fe6cd699"


def test_rl_never_trains_on_what_the_base_model_was_taught() -> None:
    source = WordsSource(WORD_TIERS)
    assert RL_STREAM != TEACHING_STREAM
    for seed in (0, 1):
        taught = [training_problem(TIERS, TEACHING_STREAM, seed, index).problem for index in range(1000)]
        trained = [problem for step in range(10) for problem in source.problems(seed, step, 100)]
        assert not {problem.question for problem in taught} & {problem.question for problem in trained}
        assert not {problem.id for problem in taught} & {problem.id for problem in trained}


def test_half_of_the_demonstrations_leave_the_last_result_out() -> None:
    problems = [training_problem(TIERS, TEACHING_STREAM, 0, index) for index in range(2000)]
    texts = [demonstration(problem, Random(index)) for index, problem in enumerate(problems)]
    left_out = sum(
        text.count("=") == len(problem.operations) - 1 for text, problem in zip(texts, problems, strict=True)
    )
    written = sum(text.count("=") == len(problem.operations) for text, problem in zip(texts, problems, strict=True))
    assert left_out + written == 2000
    assert 0.46 < left_out / 2000 < 0.54


def test_filler_adds_words_without_numbers_and_leaves_the_problem_alone() -> None:
    plain, diluted = (
        training_problem([tier_named("words3")], TEACHING_STREAM, 0, 5),
        training_problem([tier_named("words3", 12)], TEACHING_STREAM, 0, 5),
    )
    assert plain.problem == diluted.problem
    words = {filler: demonstration(problem, Random(0)).split() for filler, problem in ((0, plain), (12, diluted))}
    assert 30 < len(words[12]) - len(words[0]) < 66  # 4 x 12, and the wording is drawn anew
    assert sum(word in "+-*/" for word in words[12]) == 4


@pytest.mark.parametrize("wrong", [lambda: tier_named("words9"), lambda: make_tiers(-1)])
def test_unknown_tier_and_negative_filler_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()


def test_the_training_split_is_no_evaluation_set() -> None:
    with pytest.raises(ConfigError, match="final"):
        evaluation_set(TIERS[0], "train", 3)
