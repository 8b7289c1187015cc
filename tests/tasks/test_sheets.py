"""Sheets: what is generated, what it earns, and what is marked, by hand."""

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.model.load import load_tokenizer
from oar.tasks.data.demonstrations import SheetDemonstrations
from oar.tasks.data.sources import SheetsSource, load_benchmarks
from oar.tasks.embedded.splits import RL_STREAM, TEACHING_STREAM, split_of
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import Completed, RewardTerms
from oar.tasks.sheets import SHEETS, Sheet, evaluation_set, marks, reward, training_problem
from oar.tasks.sheets.generator import ANSWERS, REWARDS, SheetProblem, demonstration
from oar.tasks.sheets.language import ASKED
from oar.tasks.sheets.teaching import SheetTeaching
from oar.tasks.task import Task
from tests.byte_level import byte_level_tokenizer
from tests.config.test_config import composed
from tests.smollm2 import SMOLLM2, needs_smollm2

LESSON = SheetTeaching(sheet=Sheet()).lesson()
TASK = Task(LESSON.tokenizer(), "####")
GOLD = "ba 1 be 2 bi 3 bo 4"


@pytest.mark.parametrize(
    ("sheet", "split", "sentence"),
    [
        (
            Sheet(entries=2, keys=4, asked=1),
            "final",
            r"The final split must have 200 different problems, but \d+ is all",
        ),
        (
            Sheet(entries=1, keys=1, asked=1),
            "curve",
            r"A sheet of 1 of 1 keys must have prompts of the curve split, but",
        ),
    ],
)
def test_a_sheet_with_too_few_prompts_is_told(sheet: Sheet, split: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        evaluation_set(sheet, split, 200)


def problem(reward: str, answer: str, gold: str, asked: str = "bi") -> Problem:
    counted = {"reward": reward, "answer": answer, "asked": asked}
    return Problem("1", "", gold, SHEETS, GOLD, columns={SHEETS: counted})


@cache
def sheet_reward() -> RewardTerms:
    """That of conf/, as training has it."""
    return RewardTerms.built(validated(composed("profile=sheets"), TrainConfig).reward, [])


def earned(one: Problem, text: str) -> float:
    completed = Completed(one, "", text, TASK.grade_all([one], [text])[0], 1, False)
    return sheet_reward()([completed], 0)[0].total


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_demonstration_in_which_all_is_known_is_right_and_earns_all(reward: str, answer: str) -> None:
    sheet = Sheet(entries=5, keys=20, reward=reward, answer=answer)
    for index in range(20):
        made = training_problem(sheet, RL_STREAM, 1, index)
        text = demonstration(made, 1.0, index % 3, Random(index))
        ids = TASK.tokenizer.encode(text, add_special_tokens=False)
        assert TASK.tokenizer.unk_token_id not in ids
        assert TASK.decode(ids) == text
        assert TASK.grade(made.problem, text)
        assert earned(made.problem, text) == 1
        assert LESSON.is_good(made.problem, text)
        assert TASK.decode(TASK.encode_gold(made.problem)) == made.problem.answer


def test_where_the_asked_entry_stands_is_said_if_its_place_does_not_tell() -> None:
    made = [training_problem(Sheet(entries=5, asked=None), RL_STREAM, 1, index) for index in range(100)]
    for index, one in enumerate(made):
        words = one.problem.question.split()
        assert words.count(ASKED) == 1
        assert words[words.index(ASKED) - 1] == one.asked == one.problem.columns[SHEETS]["asked"]
        text = demonstration(one, 0.3, index % 2, Random(index))
        digit = text.split()[text.split().index(ASKED) - 1]
        assert f"{one.asked} {digit} {ASKED} " in text
        assert text.endswith(f" #### {digit}")
        ids = TASK.tokenizer.encode(text, add_special_tokens=False)
        assert TASK.decode(ids) == text
        causal = TASK.marks(one.problem, ids)["causal"]
        assert [token for token, mark in enumerate(causal) if mark] == [text.split().index(ASKED) - 1]
        assert LESSON.is_good(one.problem, text)
    assert {one.keys.index(one.asked) for one in made} == set(range(5)), "every place"
    assert ASKED not in training_problem(Sheet(), RL_STREAM, 1, 0).problem.question


def test_the_hidden_table_is_one_and_digits_are_known_as_often_as_asked() -> None:
    sheet = Sheet()
    made = [training_problem(sheet, TEACHING_STREAM, 0, index) for index in range(400)]
    said = [demonstration(one, 0.25, 0, Random(index)).split() for index, one in enumerate(made)]
    right = [
        sheet.right[key] == digit for words in said for key, digit in zip(words[:16:2], words[1:16:2], strict=True)
    ]
    assert sum(right) / len(right) == pytest.approx(0.25 + 0.75 / 8, abs=0.03)
    assert set(sheet.right.values()) <= set("12345678")
    assert Sheet(table=1).right != sheet.right


def test_problems_are_pure_held_out_and_fresh() -> None:
    sheet = Sheet()
    source = SheetsSource(sheet)
    trained = source.problems(1, 0, 40) + source.problems(1, 1, 40)
    assert source.problems(1, 1, 40) == trained[40:]
    questions = Counter(one.question for one in trained)
    assert max(questions.values()) == 1
    assert {split_of(question) for question in questions} == {"train"}
    taught = {training_problem(sheet, TEACHING_STREAM, 1, index).problem.question for index in range(80)}
    assert not taught & set(questions)
    for split in ("tuning", "curve", "final"):
        held_out = [one.problem.question for one in evaluation_set(sheet, split, 30)]
        assert len(set(held_out)) == 30
        assert {split_of(question) for question in held_out} == {split}


def test_a_benchmark_is_of_the_sheet_that_is_trained() -> None:
    cfg = validated(composed("profile=sheets", "data.source.sheet.entries=5"), TrainConfig)
    found = load_benchmarks(cfg.benchmark, "curve", 4)[SHEETS]
    made: list[SheetProblem] = evaluation_set(Sheet(entries=5), "curve", 4)
    assert list(found.problems) == [one.problem for one in made]
    assert found.origin["entries"] == 5


# Completion, and what it earns as one, share and all; with the answer of the asked entry (bi), and that of every entry.
WRITTEN = [
    ("ba 1 be 2 bi 3 bo 4 #### {}", "3", GOLD, (1, 1, 1), (1, 1, 1)),
    ("ba 1 be 5 bi 3 bo 4 #### {}", "3", "ba 1 be 5 bi 3 bo 4", (1, 0.75, 0), (1, 0.75, 0)),
    ("ba 1 be 2 bi 5 bo 4 #### {}", "5", "ba 1 be 2 bi 5 bo 4", (0, 0.75, 0), (0, 0.75, 0)),
    ("ba 1 be 2 bi 3 bo 4 #### {}", "4", "ba 1 be 2 bi 4 bo 4", (0, 0.75, 0), (0, 0.75, 0)),  # not what stands above
    ("ba 1 be 2 bo 4 #### {}", "3", "ba 1 be 2 bo 4", (0, 0.75, 0), (0, 0.75, 0)),
    ("bi 5 bi 3 ba 1 be 2 bo 4 #### {}", "3", GOLD, (0, 0.75, 0), (0, 0.75, 0)),  # the first one counts
    ("ba 1 be 2 bi 33 bo 4 #### {}", "3", GOLD, (0, 0.75, 0), (0, 0.75, 0)),
    ("ba 1 be 2 bi 3 bo 4{}", "", "", (0, 0, 0), (0, 0, 0)),
]


@pytest.mark.parametrize(("text", "one", "every", "of_one", "of_every"), WRITTEN)
def test_what_a_sheet_earns(text: str, one: str, every: str, of_one: Any, of_every: Any) -> None:
    for answer, gold, said, expected in (("one", "3", one, of_one), ("every", GOLD, every, of_every)):
        got = tuple(earned(problem(reward, answer, gold), text.format(said)) for reward in REWARDS)
        assert got == expected, answer
    checked = tuple(earned(problem(reward, "checksum", "0"), text.format(one and "7")) for reward in REWARDS)
    assert checked[1] >= of_one[1]  # a wrong checksum takes nothing away


def test_a_step_is_an_entry() -> None:
    ids = TASK.tokenizer.encode("ba 1 well be 2 #### ba 1 be 2", add_special_tokens=False)
    assert TASK.step_starts(ids) == [2, 5], "nothing of the answer"
    assert TASK.step_starts(ids[:5]) == [2]
    assert TASK.tokenizer.convert_ids_to_tokens(TASK.step_end_ids()) == list("0123456789")


def test_marks_are_the_digits_that_count() -> None:
    text = "well ba 1 be 5 bi 6 bo 4 #### 6"
    ids = TASK.tokenizer.encode(text, add_special_tokens=False)
    words = text.split()

    def marked(reward: str) -> dict[str, list[str]]:
        found = TASK.marks(problem(reward, "one", "3"), ids)
        assert all(len(mark) == len(ids) for mark in found.values())
        right = {name: found.pop(name) for name in ("right", "all_right") if name in found}
        (name,) = right
        shown = {key: [word for word, mark in zip(words, marks, strict=True) if mark] for key, marks in found.items()}
        return shown | {name: [TASK.tokenizer.convert_ids_to_tokens(one) for one in right[name] if one]}

    assert marked("one") == {"causal": ["6"], "error": ["6"], "right": ["3"]}
    every = {"causal": ["1", "5", "6", "4"], "error": ["5"]}
    assert marked("share") == every | {"right": ["1", "2", "3", "4"]}
    assert marked("all") == every | {"all_right": ["1", "2", "3", "4"]}


_ODD = st.lists(
    st.sampled_from(
        ["ba ", "be ", "1 ", "2 ", "2", "3,", "\n", "ba", " 1", "#### ", "x: ", "\N{ARABIC-INDIC DIGIT ONE} "]
    )
)


@settings(max_examples=200, deadline=None)
@given(_ODD)
@pytest.mark.parametrize("vocabulary", ["own", "byte level"])
def test_marks_and_reward_read_the_same_digits(vocabulary: str, pieces: list[str]) -> None:
    """Whatever is written: as many marked digits are right as the reward counts."""
    tokenizer = TASK.tokenizer if vocabulary == "own" else byte_level_tokenizer()
    ids = tokenizer("".join(pieces), add_special_tokens=False).input_ids
    one = problem("share", "checksum", "0")
    right = TASK.marks(one, ids)["right"] if vocabulary == "own" else marks(one, ids, tokenizer)["right"]
    hits = sum(wanted == token for wanted, token in zip(right, ids, strict=True) if wanted)
    said = str(tokenizer.decode(ids, skip_special_tokens=True))
    assert reward(said, "0", GOLD, one.columns["sheets"]) == pytest.approx(hits / 4)


@pytest.fixture(params=["byte level", pytest.param("smollm2", marks=needs_smollm2)])
def pretrained(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_level_tokenizer() if request.param == "byte level" else load_tokenizer(SMOLLM2)


def test_marks_and_steps_in_the_tokens_of_any_model(pretrained: PreTrainedTokenizerBase) -> None:
    task = Task.named(pretrained, "####", "question_answer")
    text = " ba 1\nbe 5\nbi 6\nbo 4\n#### ba 1 be 5 bi 6 bo 4"
    ids = [*pretrained(text, add_special_tokens=False).input_ids, pretrained.eos_token_id]
    said = [pretrained.decode([one]) for one in ids]
    one = problem("share", "every", GOLD)
    marks = task.marks(one, ids)
    assert [word.strip() for word, mark in zip(said, marks["causal"], strict=True) if mark] == list("1564")
    assert [word.strip() for word, mark in zip(said, marks["error"], strict=True) if mark] == ["5"]
    assert [pretrained.decode([right]).strip() for right in marks["right"] if right] == list("1234")
    assert [said[start].strip()[0] for start in task.step_starts(ids)] == list("bbb#")
    assert earned(one, text) == 0.5


def test_a_pretrained_model_is_shown_sheets_line_by_line() -> None:
    shown = SheetDemonstrations(Sheet(entries=4, answer="every"), known=1.0)
    question, text = shown.pair(0, 7)
    made = training_problem(Sheet(entries=4, answer="every"), TEACHING_STREAM, 0, 7)
    lines = [f"{key} {made.sheet.right[key]}" for key in question.split()]
    assert text.split("\n") == [*lines, f"#### {' '.join(lines)}"]
    assert shown.pair(0, 7) == (question, text) != shown.pair(1, 7)
    with pytest.raises(ConfigError, match="choose data=sheets"):
        SheetDemonstrations(None, 0.5)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("ba 7 be 7 bi 8 bo 7 #### 8", True),  # in form, though no digit is right
        ("ba 7 be 7 bi 8 bo 7 #### 7", False),
        ("ba 7 bi 8 bo 7 #### 8", False),
        ("ba 7 be 7 bi 8 bo 7 8", False),
    ],
)
def test_teaching_is_over_when_the_form_is_kept(text: str, good: bool) -> None:
    assert LESSON.is_good(problem("one", "one", "3"), text) == good


def test_without_a_sheet_there_is_nothing_to_teach() -> None:
    with pytest.raises(ConfigError, match="choose data=sheets"):
        SheetTeaching().lesson()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": 17}, "sheet.entries must be 1 to sheet.keys"),
        ({"asked": 9}, "sheet.asked"),
        ({"keys": 1000}, "sheet.keys"),
        ({"digits": 10}, "sheet.digits must be 2 to 9"),
        ({"reward": "some"}, "one, share, all"),
        ({"answer": "none"}, "one, every, checksum"),
    ],
)
def test_a_sheet_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sheet(**changes)
