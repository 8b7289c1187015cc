"""docs/OWN_DATA.md: its files are read, and its commands compose and find their problems."""

import re
import shlex
from pathlib import Path

import pytest

from oar.config import EvaluateConfig, TrainConfig, build, validated
from oar.tasks.data.sources import load_benchmarks, refuse_unreadable
from oar.tasks.problem import Problem
from oar.tasks.template import load_template
from tests.config.test_config import composed

PAGE = (Path(__file__).parents[2] / "docs" / "OWN_DATA.md").read_text()
MINE, THEIRS = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [
    (words[1], shlex.split(words[2].removeprefix("ARGS=")))
    for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    for words in map(shlex.split, block.strip().splitlines())
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("mine", MINE), ("theirs", THEIRS), ("held_out", MINE)):
        (tmp_path / f"{name}.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)


def training(overrides: list[str]) -> list[Problem]:
    cfg = validated(composed(*overrides), TrainConfig)
    return build("data.source", cfg.data.source).problems(1, 0, 2)


@pytest.mark.parametrize(("program", "overrides"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_finds_its_problems(program: str, overrides: list[str]) -> None:
    cfg = validated(composed(*overrides, name=program), {"train": TrainConfig, "evaluate": EvaluateConfig}[program])
    assert (cfg.template is None) == (cfg.model.path is None)  # a model that is taught here answers the bare question
    if cfg.template is not None:
        load_template(cfg.template)
    sets = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems and 2)
    assert all(len(found.problems) == 2 for found in sets.values())
    refuse_unreadable(sets.values())
    if program == "train":
        assert len(training(overrides)) == 2


def test_the_rows_of_the_page_are_what_it_says() -> None:
    by_command = [sorted(problem.answer for problem in training(COMMANDS[place][1])) for place in (0, 3, 5)]
    assert by_command == [["17", r"\frac{7}{2}"], ["1025", "17"], ["17", r"\frac{7}{2}"]]
    (halved,) = [problem for problem in training(COMMANDS[0][1]) if problem.level == 1]
    assert (halved.columns["hint"], halved.solution) == ("halve it", "7 / 2")


def test_a_file_is_evaluated_as_a_whole() -> None:
    """Unless it is said, only its first 200 problems are."""
    named = [(program, overrides) for program, overrides in COMMANDS if "benchmark=local" in overrides]
    assert len(named) == 3
    for program, overrides in named:
        assert composed(*overrides, name=program).evaluation.final_problems is None
    assert composed("benchmark=local", name="evaluate").evaluation.final_problems == 200
