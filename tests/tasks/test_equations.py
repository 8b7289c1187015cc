"""Written equations: found, read and checked; the public solutions, counted by hand; and the tokens they mark."""

import json
import os
from pathlib import Path

import pytest

from oar.tasks.equations import equations, holds
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from tests.byte_level import byte_level_tokenizer

TASK = Task.named(byte_level_tokenizer(), "####", "question_answer")
PROBLEM = Problem("gsm8k-0", "How many?", "72", "gsm8k")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("She sold 48/2 = 24 clips.", ["48 / 2 24"]),
        ("48/2 = <<48/2=24>>24 clips", ["48 / 2 24"]),  # the annotation alone has its result behind the sign
        ("He paid $1,200 - $.50 x 2 = $1,199.", ["$1,200 - $.50 x 2 $1,199"]),
        ("(2 + 3) * 4 = 20", ["2 + 3 * 4 20"]),
        ("2 + 3 = 5 * 2 = 10", ["2 + 3 5 * 2", "5 * 2 10"]),
        ("It is -21/3 = -7 degrees", ["- 21 / 3 - 7"]),
        ("20% of 50, that is 50*20% = 10", ["50 * 20% 10"]),
        ("so 5 + 3\n= 8 and 1 + 1 = 2", ["1 + 1 2"]),  # a line ends a calculation
        ("x = 5, 5 = 5, 2x = 6, x - 3 * 2 = 4, 3 + 4 = 2x", []),  # nothing is calculated, or an unknown is
        ("1 1/2 + 2 = 3 1/2, 650 000/2 = 325 000", []),  # numbers that cannot be told from two
        ("weeks 3-4 had", []),
    ],
)
def test_what_an_equation_is(text: str, said: list[str]) -> None:
    assert [" ".join(text[first:last] for first, last in one.parts) for one in equations(text)] == said
    for one in equations(text):
        assert text[one.result[0] : one.result[1]].strip() == text[one.result[0] : one.result[1]]


@pytest.mark.parametrize(
    ("left", "right", "right_or_not"),
    [
        ("48/2", "24", True),
        ("48 + 24", "71", False),
        ("$1,200 - 200", "$1000", True),
        ("2/3", "0.67", True),
        ("2/3", "0.66", False),
        ("100/6", "17", True),  # people round
        ("7*3", "21.4", False),
        ("50*20%", "10", True),
        ("30% + 20%", "50%", True),
        ("8/16 * 100%", "50%", True),
        ("75% * 80%", "60%", True),
        ("15/150", "1/10", True),
        ("2(3 + 4)", "14", True),
        ("(1/2)(20)", "10", True),
        ("007 + 1", "8", True),
        ("3 - 5", "-2", True),
        ("5/0", "1", None),
        ("560//10", "56", None),
        ("2 ** 3", "8", None),
        ("(2 + 3", "5", None),
    ],
)
def test_whether_it_holds(left: str, right: str, right_or_not: bool | None) -> None:
    assert holds(left, right) is right_or_not


def test_a_text_that_nobody_wrote_takes_no_time() -> None:
    """A regular expression for whole equations needed minutes for a line of digits and signs."""
    assert equations("1 + " * 20_000 + "= ") == []
    assert equations("(" * 20_000 + "1 + 1 = 2") != []
    assert holds("(" * 300 + "1" + ")" * 300, "1") is None


def encode(text: str) -> list[int]:
    return [*TASK.tokenizer(text, add_special_tokens=False).input_ids, TASK.tokenizer.eos_token_id]


def marked(text: str, name: str) -> str:
    ids = encode(text)
    mask = TASK.marks(PROBLEM, ids)[name]
    return " ".join(TASK.tokenizer.decode([token]).strip() for token, chosen in zip(ids, mask, strict=True) if chosen)


def test_the_tokens_of_a_completion() -> None:
    right = " In May 48/2 = 24 clips, so 48 + 24 = 72.\n#### 72"
    assert marked(right, "causal") == marked(right, "error") == "4 8 / 2 2 4 4 8 + 2 4 7 2"
    wrong = " In May 48/2 = 34 clips, so 48 + 34 = 83.\n#### 83"
    assert marked(wrong, "causal") == "4 8 / 2 3 4 4 8 + 3 4 8 3"
    ids = encode(wrong)
    place = TASK.marks(PROBLEM, ids)["error"].index(True)
    assert TASK.decode(ids[:place]).strip() == "In May 48/2 ="  # the first one that is wrong, not what follows from it
    assert marked(" So 48 + 24 = 72.\n#### 71", "error") == ""  # calculated rightly: nowhere to point
    assert TASK.marks(PROBLEM, []) == {"causal": [], "error": []}
    assert marked(" No sum.\n#### 4 + 4 = 9", "causal") == ""  # behind the marker is no reasoning


@pytest.mark.skipif("OAR_DATA" not in os.environ, reason="OAR_DATA names no folder of benchmark files")
def test_false_alarms_on_the_public_solutions() -> None:
    """Of 47 alarms, read one by one, 22 are mistakes of the data (2*8 = 24) and 25 false (a clock, cents for dollars, 3/ 1/4)."""
    lines = (Path(os.environ["OAR_DATA"]) / "gsm8k_train.jsonl").read_text().splitlines()
    found = [one.holds for line in lines for one in equations(json.loads(line)["solution"])]
    assert len(found) == 20_298
    assert (found.count(False), found.count(None)) == (47, 23)
