"""Verdicts, prompts and graded batches on the embedded task's tokenizer."""

from dataclasses import replace

import pytest
import torch

from oar.common.errors import DataError
from oar.learner.collect import grade_rollouts
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.verifier import verify
from oar.tasks.words import build_tokenizer

TASK = Task(build_tokenizer(), "####")
PROBLEM = Problem("p", "Tom has 12 apples .", "17", "words1")


@pytest.mark.parametrize(
    ("gold", "completion", "verdict"),
    [
        ("17", "so #### 17", True),
        ("17", "so #### 17 .", False),
        ("17", "#### 17 #### 18", False),
        ("17", "17", False),
        ("17", "####", False),
        ("7", "#### 07", True),
        ("0", "#### 00", True),
        ("-5", "#### -5", True),
        ("5", "#### -5", False),
        ("1024", "#### 1,024", True),
        ("x+1", "#### x + 1", True),
        ("7", "#### " + "7" * 10_000, False),  # more digits than int() takes
    ],
)
def test_verify(gold: str, completion: str, verdict: bool) -> None:
    assert verify(gold, completion) is verdict


@pytest.mark.parametrize(
    ("said", "verdict"), [("14 ,17, 8", True), ("014 , 17 , 8", False), ("1 , 41 , 78", False), ("14178", False)]
)
def test_a_list_of_numbers_is_no_number(said: str, verdict: bool) -> None:
    """The answers of problems in parts: the same digits, cut otherwise, are other answers."""
    assert TASK.grade(replace(PROBLEM, answer="14 , 17 , 8"), f"so #### {said}") is verdict
    assert TASK.grade(replace(PROBLEM, answer="1024"), "so #### 1 , 024"), "as this tokenizer writes 1,024"
    assert not TASK.grade(replace(PROBLEM, answer="14 , 178"), "so #### 14178"), "a list, though it looks like 14,178"


def rollout(text: str, reason: str = "stop") -> Rollout:
    ids = TASK.tokenizer.encode(text, add_special_tokens=False)
    ids += [TASK.tokenizer.eos_token_id] if reason == "stop" else []
    prompt = TASK.encode_prompt(PROBLEM)
    return Rollout(tuple(prompt), tuple(ids), tuple(-0.5 for _ in ids), 3, reason)


def test_graded_batch_by_hand() -> None:
    group = [rollout("We start with 12 . #### 17"), rollout("#### 18"), rollout("We start", "length")]
    graded = grade_rollouts([PROBLEM], [group], TASK, torch.device("cpu"))
    assert graded.rewards.tolist() == [1.0, 0.0, 0.0]
    assert graded.truncated.tolist() == [False, False, True]
    assert graded.texts == ["We start with 12 . #### 17", "#### 18", "We start"]
    batch = graded.batch
    # We start with 1 2 . | #### | 1 7 | <eos>
    assert batch.reasoning_mask.sum(dim=1).tolist() == [6, 0, 0]
    assert batch.marker_mask.sum(dim=1).tolist() == [1, 1, 0]
    assert batch.answer_mask.sum(dim=1).tolist() == [2, 2, 0]
    assert batch.completion_lengths.tolist() == [10, 4, 2]
    assert batch.has_answer.tolist() == [True, True, False]
    prompt = TASK.encode_prompt(PROBLEM)
    assert batch.input_ids[0].tolist() == prompt + list(group[0].completion_ids)
    assert batch.input_ids[1, : len(prompt) + 4].tolist() == prompt + list(group[1].completion_ids)


SOLVED = Problem("p", "Tom has 12 apples .", "17", "words1", solution="12 . 12 + 5 = 17 .")


def marked(problem: Problem, text: str) -> dict[str, str]:
    """The marked tokens by the name of the mark."""
    ids = rollout(text).completion_ids
    tokens = TASK.tokenizer.convert_ids_to_tokens(list(ids))
    marks = TASK.marks(problem, ids)
    assert all(len(mark) == len(ids) for mark in marks.values())
    return {
        name: " ".join(token for token, chosen in zip(tokens, mark, strict=True) if chosen)
        for name, mark in marks.items()
    }


def test_marks_by_hand() -> None:
    right = "We start with 12 . Then 12 + 5 = 17 . #### 17"
    causal, written = "1 2 1 2 + 5 1 7", "1 2 . 1 2 + 5 = 1 7 ."
    assert marked(SOLVED, right) == {"causal": causal, "written": written, "error": causal}
    wrong = "We start with 12 . Then 12 - 5 = 7 . #### 7"
    assert marked(SOLVED, wrong) == {"causal": "1 2 1 2 - 5 7", "written": "1 2 . 1 2 - 5 = 7 .", "error": "-"}
    # only the answer is wrong: located, but not in the reasoning
    answer = "We start with 12 . Then 12 + 5 . #### 18"
    assert marked(SOLVED, answer) == {"causal": "1 2 1 2 + 5", "written": "1 2 . 1 2 + 5 .", "error": "8"}
    # wrong and not to be located: the equation is missing
    assert marked(SOLVED, "We start with 12 . #### 12") == {"causal": "1 2", "written": "1 2 .", "error": ""}


def test_marks_need_a_known_computation() -> None:
    text = "We start with 12 . Then 12 + 5 = 17 . #### 17"
    assert marked(PROBLEM, text) == {}
    assert marked(replace(SOLVED, benchmark="elsewhere"), text) == {}


def test_marks_of_a_batch() -> None:
    group = [rollout("We start with 12 . Then 12 - 5 = 7 . #### 7"), rollout("12 + 5 = 17 . #### 17"), rollout("12")]
    graded = grade_rollouts([SOLVED], [group], TASK, torch.device("cpu"))
    mask = graded.batch.completion_mask
    assert set(graded.marks) == {"causal", "written", "error"}
    for name, mark in graded.marks.items():
        assert mark.dtype == torch.bool
        assert mark.shape == mask.shape
        assert mark.device == mask.device
        assert not (mark & ~mask).any()
        for row, one in enumerate(group):
            assert mark[row, : len(one.completion_ids)].tolist() == TASK.marks(SOLVED, one.completion_ids)[name]
    assert graded.marks["error"].sum(dim=1).tolist() == [1, 6, 0]


def test_marks_that_not_every_problem_knows_are_left_out() -> None:
    groups = [[rollout("We start with 12 . #### 12")], [rollout("#### 17")]]
    assert grade_rollouts([SOLVED, PROBLEM], groups, TASK, torch.device("cpu")).marks == {}


def test_conclude_text_must_be_known_to_the_model() -> None:
    assert TASK.encode_marker(None) == [TASK.tokenizer.convert_tokens_to_ids("####")]
    with pytest.raises(DataError, match=r"probe\.conclude"):
        TASK.encode_marker("therefore")


def test_a_neutral_text_is_one_known_token() -> None:
    assert TASK.encode_neutral(None) is None
    assert TASK.encode_neutral(" the") == TASK.tokenizer.convert_tokens_to_ids("the")
    for text, said in (("the answer", "is 2"), ("zebra", "does not know")):
        with pytest.raises(DataError, match=rf"counterfactual\.text must be one token .*{said}"):
            TASK.encode_neutral(text)
