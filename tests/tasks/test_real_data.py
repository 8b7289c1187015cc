"""The real files, where the folder that OAR_DATA names has them: counts, answers, and what lies in what."""

import os
import re
from pathlib import Path

import pytest

from oar.config import TrainConfig, build, validated
from oar.tasks.data.contamination import Prints, compare
from oar.tasks.data.records import last_boxed
from oar.tasks.data.sources import DatasetSource, load_benchmarks
from oar.tasks.problem import ProblemSet
from tests.config.test_config import composed

FOLDER = Path(os.environ.get("OAR_DATA", "")).absolute()
pytestmark = pytest.mark.skipif("OAR_DATA" not in os.environ, reason="OAR_DATA names no folder of benchmark files")

SIZES = {"gsm8k": 1319, "math500": 500, "aime24": 30, "aime25": 30, "amc23": 40, "amc83": 83}


def benchmark(name: str) -> ProblemSet:
    cfg = validated(composed(f"benchmark={name}", f"benchmark.path={FOLDER}"), TrainConfig)
    return load_benchmarks(cfg.benchmark, "final", None)[name]


def training(name: str, levels: str) -> ProblemSet:
    overrides = (f"data={name}", f"data.source.path={FOLDER}", f"data.source.levels={levels}")
    source = build("data.source", validated(composed(*overrides), TrainConfig).data.source)
    assert isinstance(source, DatasetSource)
    return source.problem_set


@pytest.mark.parametrize("name", SIZES)
def test_benchmarks_are_whole(name: str) -> None:
    problems = benchmark(name).problems
    assert len(problems) == SIZES[name]
    if name != "math500":
        assert all(re.fullmatch(r"-?(0|[1-9]\d*)", problem.answer) for problem in problems)
    assert all(problem.question == problem.question.strip() for problem in problems)


def test_training_sets_are_whole() -> None:
    assert len(training("gsm8k", "null").problems) == 7473
    assert len(training("math", "[3,4,5]").problems) == 5584
    everything = training("math", "null").problems
    counts = [sum(problem.level == level for problem in everything) for level in (1, 2, 3, 4, 5, None)]
    assert counts == [564, 1348, 1592, 1690, 2302, 2]


def test_the_last_box_is_the_answer_in_every_solution_of_math() -> None:
    problems = [*training("math", "null").problems, *benchmark("math500").problems]
    assert [problem.id for problem in problems if last_boxed(problem.solution) != problem.answer] == []


def test_what_lies_in_what() -> None:
    math, gsm8k = Prints.of(training("math", "null")), Prints.of(training("gsm8k", "null"))
    prints = {name: Prints.of(benchmark(name)) for name in SIZES}
    for train in (math, gsm8k):
        assert {name: len(compare(train, prints[name]).copied) for name in SIZES} == dict.fromkeys(SIZES, 0)
    assert len(compare(prints["amc83"], prints["amc23"]).copied) == 40
    assert math.repeated == 3  # 959 is 925; two more differ in white space and braces alone
    both = ProblemSet("oat", [*gsm8k.problem_set.problems, *prints["gsm8k"].problem_set.problems], {})
    assert len(compare(Prints.of(both), prints["gsm8k"]).copied) == 1319
