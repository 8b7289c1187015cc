"""Other spellings of right answers: by hand, and always such as the verifier takes and the tokenizer can write."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oar.learner.collect import collate_groups, grade_groups
from oar.tasks.problem import Problem
from oar.tasks.spellings import spellings
from oar.tasks.task import Task
from oar.tasks.template import load_template
from oar.tasks.verifier import verify
from tests.byte_level import byte_level_tokenizer
from tests.tasks.test_task import PROBLEM, TASK, rollout

PUBLIC = Path(__file__).parents[1] / "data" / "public"
BY_HAND = {
    "12": ["12.0"],
    "-1234567": ["-1,234,567", "-1234567.0"],
    "1{,}000": ["1000", "1,000", "1000.0"],
    r"\frac{1}{3}": [r"\dfrac{1}{3}", "1/3"],  # it has no last digit
    r"-\dfrac{7}{4}": [r"-\frac{7}{4}", "-7/4", "-1.75"],
    "0.05": [r"\frac{1}{20}", r"\dfrac{1}{20}", "1/20"],
    "(1,2)": ["(1, 2)"],
    r"\left[ 0,\frac{\pi}{2} \right)": [
        r"\left[ 0,\dfrac{\pi}{2} \right)",
        r"[ 0,\frac{\pi}{2} )",
        r"\left[ 0, \frac{\pi}{2} \right)",
    ],
    "x^2+1": [],
}


@pytest.mark.parametrize("answer", BY_HAND)
def test_by_hand(answer: str) -> None:
    assert spellings(answer) == BY_HAND[answer]
    assert all(verify(answer, f"\\boxed{{{spelled}}}") for spelled in spellings(answer))


def test_a_task_has_those_that_it_takes_and_its_tokenizer_can_write() -> None:
    def said(task: Task, answer: str) -> list[str]:
        return [task.decode(ids).strip() for ids in task.encode_spellings(replace(PROBLEM, answer=answer))]

    assert said(TASK, "17") == []  # 17.0 can be written, and is wrong there
    assert said(TASK, "1024") == ["1 , 024"]
    after_hash = Task.with_template(byte_level_tokenizer(), load_template("gsm8k_hash"))
    assert said(after_hash, "1024") == ["1,024", "1024.0"]
    assert said(after_hash, "0.5") == [r"\frac{1}{2}", r"\dfrac{1}{2}", "1/2"]
    for line in (PUBLIC / "math500.jsonl").read_text().splitlines():
        problem = Problem("p", "q", json.loads(line)["answer"], "math500")
        known = [after_hash.encode_gold(problem), *after_hash.encode_spellings(problem)]
        assert len({tuple(ids) for ids in known}) == len(known)
        assert all(after_hash.grade(problem, f"#### {after_hash.decode(ids)}") for ids in known)


def test_a_batch_holds_those_of_each_problem() -> None:
    problems = [replace(PROBLEM, answer="1024"), PROBLEM]
    groups = grade_groups(problems, [[rollout("#### 1"), rollout("#### 2")]] * 2, TASK)
    found = collate_groups(groups, TASK, torch.device("cpu"), spellings=True).spellings
    assert found is not None
    (ids,) = TASK.encode_spellings(problems[0])
    assert found.tolist() == [[ids], [ids], [[-1] * len(ids)], [[-1] * len(ids)]]
    assert collate_groups(groups, TASK, torch.device("cpu")).spellings is None
    none = collate_groups(groups[1:], TASK, torch.device("cpu"), spellings=True).spellings
    assert none is not None
    assert none.shape == (2, 0, 0)
