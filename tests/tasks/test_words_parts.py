"""Word problems in parts: what is asked and shown, what is held out, what it earns; by hand, and in two vocabularies."""

from random import Random
from typing import Any

import pytest

from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.tasks.data.demonstrations import PartsDemonstrations
from oar.tasks.data.sources import PartsSource, load_benchmarks
from oar.tasks.embedded.splits import split_of
from oar.tasks.reward_terms import Completed, RewardTerms
from oar.tasks.task import Task
from oar.tasks.words import RL_STREAM, TEACHING_STREAM, build_tokenizer, tier_named
from oar.tasks.words import parts as in_parts
from oar.tasks.words.generator import training_problem
from oar.tasks.words.parts import PARTS, Parts
from oar.tasks.words.teaching import PartsTeaching
from tests.byte_level import byte_level_tokenizer
from tests.config.test_config import composed

TASKS = {
    "words1": Task(build_tokenizer(), "####"),
    "english1": Task.named(byte_level_tokenizer(), "####", "question_answer"),
}


def earned(task: Task, made: in_parts.PartsProblem, text: str) -> tuple[float, bool]:
    reward = RewardTerms.built(validated(composed("data=parts", "reward=parts"), TrainConfig).reward, [])
    verdict = task.grade_all([made.problem], [text])[0]
    return reward([Completed(made.problem, "", text, verdict, 1, False)], 0)[0].total, verdict.correct


@pytest.mark.parametrize("tier", list(TASKS))
def test_a_demonstration_solves_every_part(tier: str) -> None:
    task, kind = TASKS[tier], Parts(tier, 3)
    for index in range(20):
        made = in_parts.training_problem(kind, TEACHING_STREAM, 1, index)
        text = in_parts.demonstration(made, Random(index))
        ids = task.tokenizer.encode(text, add_special_tokens=False)
        assert task.tokenizer.unk_token_id not in ids
        assert earned(task, made, task.decode(ids)) == (1.0, True)
        assert task.decode(task.encode_gold(made.problem)).strip() == made.problem.answer


def test_a_prompt_asks_what_its_parts_ask() -> None:
    made = in_parts.training_problem(Parts("english1", 2), RL_STREAM, 3, 4)
    first, second = (training_problem([tier_named("english1")], RL_STREAM, 3, index).problem for index in (8, 9))
    assert made.problem.question == f"1. {first.question} 2. {second.question}"
    assert made.problem.answer == f"({first.answer}, {second.answer})"
    assert made.problem.solution == f"1. {first.solution} 2. {second.solution}"
    lines = in_parts.demonstration(made, Random(0)).split("\n")
    assert [line.partition(" ")[0] for line in lines] == ["1.", "2.", "####"]


def test_no_part_is_held_out_elsewhere() -> None:
    kind = Parts("words1", 3)
    for split in ("tuning", "curve", "final"):
        made = in_parts.evaluation_set(kind, split, 10)
        questions = [part.problem.question for one in made for part in one.parts]
        assert len(set(questions)) == 30
        assert {split_of(question) for question in questions} == {split}
    source = PartsSource(kind)
    trained = source.problems(1, 0, 4) + source.problems(1, 1, 4)
    assert trained == [in_parts.training_problem(kind, RL_STREAM, 1, index).problem for index in range(8)]
    assert {split_of(part.problem.question) for part in in_parts.training_problem(kind, RL_STREAM, 1, 0).parts} == {
        "train"
    }


@pytest.mark.parametrize(
    ("tier", "said", "share", "solved"),
    [
        ("english1", "({0}, {1}, {2})", 1, True),
        ("english1", "({0}, 99, {2})", 2 / 3, False),
        ("english1", "({1}, {0}, {2})", 1 / 3, False),  # in another order
        ("english1", "({0}, {1})", 2 / 3, False),
        ("english1", "({0}, {1}, {2}, 5)", 1, False),
        ("english1", "", 0, False),
        ("words1", "{0} , {1} , {2}", 1, True),
        ("words1", "{0} , 99 , {2}", 2 / 3, False),
        ("words1", "{1} , {0} , {2}", 1 / 3, False),
    ],
)
def test_what_it_earns(tier: str, said: str, share: float, solved: bool) -> None:
    problems = (in_parts.training_problem(Parts(tier, 3), RL_STREAM, 0, index) for index in range(100))
    made = next(one for one in problems if len({part.problem.answer for part in one.parts}) == 3)
    answers = [part.problem.answer for part in made.parts]
    text = f"1. #### {said.format(*answers)}" if said else "1. nothing"
    assert earned(TASKS[tier], made, text) == (pytest.approx(share), solved)


def test_its_ground_truth_is_not_known() -> None:
    """A word problem's oracle reads one chain, and would take the second part's start for a mistake."""
    made = in_parts.training_problem(Parts("words1", 2), RL_STREAM, 0, 0)
    ids = TASKS["words1"].tokenizer.encode(in_parts.demonstration(made, Random(0)), add_special_tokens=False)
    assert TASKS["words1"].marks(made.problem, ids) == {}


def test_a_benchmark_and_a_lesson_are_of_the_parts_that_are_trained() -> None:
    own = ["model=parts", "data=parts", "benchmark=parts", "data.source.parts={tier: words2, count: 2}"]
    cfg = validated(composed(*own), TrainConfig)
    found = load_benchmarks(cfg.benchmark, "curve", 4)[PARTS]
    assert list(found.problems) == [one.problem for one in in_parts.evaluation_set(Parts("words2", 2), "curve", 4)]
    assert found.origin == {"generated": PARTS, "tier": "words2", "count": 2, "split": "curve"}
    lesson = PartsTeaching(parts=Parts("words2", 2)).lesson()
    question, text = lesson.demonstration(3)
    made = in_parts.training_problem(Parts("words2", 2), TEACHING_STREAM, 0, 3)
    assert question == made.problem.question
    assert lesson.is_good(made.problem, text)
    assert not lesson.is_good(made.problem, text + " 1")
    assert list(lesson.tuning()) == [PARTS]


def test_a_pretrained_model_is_shown_the_same() -> None:
    shown = PartsDemonstrations(Parts("english1", 2))
    question, text = shown.pair(0, 3)
    made = in_parts.training_problem(Parts("english1", 2), TEACHING_STREAM, 0, 3)
    assert question == made.problem.question
    assert text.endswith(f"\n#### {made.problem.answer}")
    assert shown.origin() == {"generated": PARTS, "tier": "english1", "count": 2}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Parts("words9"), "no tier 'words9'"),
        (lambda: Parts(count=1), "parts.count must be 2 or more"),
        (lambda: PartsTeaching().lesson(), "choose data=parts"),
        (lambda: PartsTeaching(parts=Parts("english1")).lesson(), "tiers words1 to words5"),
        (lambda: PartsDemonstrations(None), "choose data=parts"),
    ],
)
def test_parts_that_cannot_be_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_steps_are_lines() -> None:
    tokenizer = TASKS["english1"].tokenizer
    made = in_parts.training_problem(Parts("english1", 2), RL_STREAM, 0, 1)
    ids = tokenizer(f" {in_parts.demonstration(made, Random(0))}", add_special_tokens=False).input_ids
    starts = TASKS["english1"].step_starts(ids)
    assert [tokenizer.decode(ids[start:]).strip()[0] for start in starts] == ["2", "#"]
