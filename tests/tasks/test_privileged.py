"""What a teacher is shown of word problems and of problems with a prompt template."""

import pytest
import torch

from oar.common.errors import DataError
from oar.learner.collect import grade_rollouts
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.template import load_template
from oar.tasks.words import build_tokenizer, correction
from tests.byte_level import byte_level_tokenizer

SOLUTION = "12 . 12 + 5 = 17 . 17 - 3 = 14 ."
QUESTION = "Tom has 12 apples ."
WORDS = Task(build_tokenizer(), "####")
PROBLEM = Problem("p", QUESTION, "14", "words1", solution=SOLUTION)
RIGHT = "Then 12 + 5 = 17 . So 17 - 3 = 14 . #### 14"
OTHER = "Then 12 + 5 = 17 . So 17 - 3 . #### 14"
WRONG = "Then 12 + 5 = 18 . So 18 - 3 = 15 . #### 15"


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        (RIGHT, None),
        (OTHER, None),
        (WRONG, "12 + 5 = 17 ."),
        ("Then 12 + 5 = 17 . So 17 - 2 = 15 . #### 15", "17 - 3 = 14 ."),
        ("Then 12 + 5 = 17 . #### 17", "17 - 3 = 14 ."),
        ("12 + 5 = 17 . 17 - 3 = 14 . 14 + 1 = 15 . #### 15", "17 - 3 = 14 ."),  # one too many
        ("Then 12 + 5 = 17 . So 17 - 3 = 14 . #### 15", "17 - 3 = 14 ."),
        ("Then 12 + 5 = 17 . So 17 - 3 . #### 13", "17 - 3 = 14 ."),
        ("", "12 + 5 = 17 ."),
    ],
)
def test_the_equation_that_belongs_there(completion: str, said: str | None) -> None:
    assert correction(PROBLEM, completion) == said


def contexts(task: Task, problem: Problem, texts: list[str], kind: str) -> list[str]:
    prompt = task.encode_prompt(problem)
    group = []
    for text in texts:
        ids = task.tokenizer.encode(text, add_special_tokens=False)
        group.append(Rollout(tuple(prompt), tuple(ids), (-1.0,) * len(ids), 0, "stop"))
    batch = grade_rollouts([problem], [group], task, torch.device("cpu"), kind).batch
    shown = zip(batch.context_ids, batch.context_lengths.tolist(), strict=True)
    return [task.tokenizer.decode(ids[:length]) for ids, length in shown]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("answer", ["#### 14"] * 3),
        ("solution", [f"{QUESTION} {SOLUTION}"] * 3),
        ("peer", [f"{QUESTION} {text}" for text in (OTHER, RIGHT, RIGHT)]),
        ("feedback", ["", "", "12 + 5 = 17 ."]),
    ],
)
def test_word_problems_are_shown_it_before_the_question(kind: str, shown: list[str]) -> None:
    found = contexts(WORDS, PROBLEM, [RIGHT, OTHER, WRONG], kind)
    assert found == [f"<bos> {one} {QUESTION}" if one else "" for one in shown]


def test_a_group_without_another_right_completion_has_no_peer() -> None:
    assert contexts(WORDS, PROBLEM, [WRONG, WRONG], "peer") == ["", ""]
    found = contexts(WORDS, PROBLEM, [WRONG, RIGHT], "peer")
    assert found == [f"<bos> {QUESTION} {RIGHT} {QUESTION}", ""]


def test_a_template_asks_with_it() -> None:
    task = Task.with_template(byte_level_tokenizer(), load_template("qwen_boxed"))
    problem = Problem("q", "What is 1+1?", "2", "math500", solution="Count: one, two.")
    plain = task.render(problem)
    before, after = plain.split("What is 1+1?")
    found = contexts(task, problem, ["It is \\boxed{3}", "It is \\boxed{2}", "It"], "solution")
    assert len(set(found)) == 1
    assert found[0].startswith(f"{before}What is 1+1?\n\nHere is a reference solution:\nCount: one, two.\n")
    assert found[0].endswith(after)
    said = contexts(task, problem, ["It is \\boxed{3}", "It is \\boxed{2}", "It"], "feedback")
    assert "To an earlier attempt this was said: 3 is not the right answer.\n" in said[0]
    assert said[1] == ""
    assert "No final answer was found.\n" in said[2]
    (peer, *_) = contexts(task, problem, ["It is \\boxed{3}", "So \\boxed{2}"], "peer")
    assert "Here is a right solution:\nSo \\boxed{2}\n" in peer


def test_what_cannot_be_shown_is_said() -> None:
    with pytest.raises(DataError, match="needs a reference solution of every problem, but q of words1 has none"):
        contexts(WORDS, Problem("q", QUESTION, "14", "words1"), [WRONG], "solution")
    with pytest.raises(DataError, match="'not there', which this model's vocabulary cannot say"):
        contexts(WORDS, Problem("q", QUESTION, "14", "words1", solution="not there"), [WRONG], "solution")


def test_tokens_that_end_a_step() -> None:
    assert WORDS.tokenizer.convert_ids_to_tokens(WORDS.step_end_ids()) == ["."]
    task = Task.with_template(byte_level_tokenizer(), load_template("qwen_boxed"))
    ends = task.step_end_ids()
    broken = [ids for ids in range(len(task.tokenizer)) if task.tokenizer.decode([ids]).endswith("\n")]
    assert ends == broken
    assert set(task.tokenizer.encode("\n", add_special_tokens=False)) < set(ends)
