"""Every command of the README, of docs/ and of the claims is one that works, as far as that can be told without running it."""

import importlib.util
import re
import shlex
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments.shared.planned import PlanConfig
from oar.analysis.claims.claims import load_claims
from oar.analysis.claims.ledger import ledger
from oar.command_line.overrides import CONF, overrides_of_runs, quoted
from oar.command_line.programs import name_of
from oar.config import TrainConfig, validated
from tests.config.test_config import composed
from tests.own_signal import write_own_signal
from tests.programs import SHELL

ROOT = CONF.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "results" / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").iterdir()),
]
START = r"(?:make [a-z]|oar [a-z]|(?:\S*/)?python3? (?:-m |experiments/))"


def commands(text: str) -> list[str]:
    """The commands in a page: lines of a script, of blocks of shell, and inline code, which may go over a line's end."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if language in ("", "bash") for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    spans = [span for span in spans if not re.fullmatch(r"make [a-z0-9-]+", span)]  # a target is named: see test_readme
    if text.startswith("#!"):
        lines, spans = text.splitlines(), []
    return [found for found in lines + spans if re.match(START, found)]


CLAIMS = ledger(load_claims(), [], {})["reason"]  # what each needs
FOUND = sorted({command for text in [*(page.read_text() for page in PAGES), *CLAIMS] for command in commands(text)})


def typed(command: str) -> list[str]:
    """As the shell hands it on, its comment and redirection left out and its placeholders filled."""
    filled = command.partition(" > ")[0].replace("[...]", "[FOLDER]").replace(" ...", "").replace("<name>", "grpo")
    filled = filled.replace(":PORT", ":8000").replace("$ENGINE", "http://127.0.0.1:8000")
    return shlex.split(re.sub(r"\$\w+", "FOLDER", filled), comments=True)


def programs(words: list[str]) -> list[tuple[str, list[str]]]:
    """The names of the programs in experiments/ that a command starts, with their arguments. Make is asked what it would run."""
    if words[0] == "oar":
        return [] if words[1] == "completion" else [(name_of(words[1]), words[2:])]
    if words[0] != "make":
        name, *arguments = words[2:] if words[1] == "-m" else words[1:]
        if name.startswith("tests."):
            assert importlib.util.find_spec(name), name  # the page that it makes is held by a test of its own
            return []
        return [(re.sub(r"^experiments[./]|\.py$", "", name), arguments)]
    said = subprocess.run(
        ["make", "-n", "-o", "setup", *words[1:]], cwd=ROOT, env=SHELL, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    lines = [shlex.split(line) for line in said.stdout.replace("\\\n", " ").splitlines()]
    started = [line[2:] for line in lines if line[:2] == [".venv/bin/python", "-m"]]
    return [(name.removeprefix("experiments."), arguments) for name, *arguments in started if name != "pytest"]


def program_module(name: str) -> ModuleType:
    """A file of experiments/, or the `__main__` of a folder."""
    package = (ROOT / "experiments" / name).is_dir()
    return importlib.import_module(f"experiments.{name}.__main__" if package else f"experiments.{name}")


def compose_and_validate(name: str, arguments: list[str], folder: Path) -> None:
    """Compose the configuration of experiments/NAME with these arguments, every run of a sweep, and validate it."""
    module = program_module(name)
    given = get_args_parser().parse_args(arguments)
    own = [one for one in given.overrides if not one.startswith("hydra")]
    if given.config_dir:  # that of docs/OWN_SIGNAL.md
        own.append(f"hydra.searchpath=[file://{write_own_signal(folder)}]")
    runs = [own]
    if given.multirun:
        parsed = OverridesParser.create().parse_overrides(own)
        runs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    for overrides in runs[:1] + runs[1:][-1:]:  # the first and the last hold the ends of every list of values
        validate(name, module, overrides, folder)


def parse(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program with arguments in place of a configuration: read them, and go no further."""
    module = program_module(name)
    read = ArgumentParser.parse_args

    def read_only(self: ArgumentParser, given: list[str]) -> None:
        read(self, given)
        sys.exit("they can be read")

    monkeypatch.setattr(ArgumentParser, "parse_args", read_only)
    with pytest.raises(SystemExit, match="they can be read"):
        module.main(arguments)


def validate(name: str, module: ModuleType, overrides: list[str], folder: Path) -> None:
    config = composed(*overrides, name=name)
    if name in ("plan", "fit"):
        schema = PlanConfig if name == "plan" else module.FitConfig
        own = list(schema.__dataclass_fields__)
        validated(OmegaConf.masked_copy(config, own), schema)
        if name == "plan":
            run = OmegaConf.masked_copy(config, [key for key in config if key not in own])
            run.model.path = run.model.path or "a folder"
            validated(run, TrainConfig)
        else:
            overrides_of_runs(overrides, own, module.FIT_SAYS)
        return
    if name == "inspect_credit":  # reads a run at once
        (folder / config.run).mkdir(parents=True)
        (folder / config.run / "config.yaml").touch()
    schema = getattr(module, "".join(part.capitalize() for part in name.split("_")) + "Config")
    settings = validated(config, schema)
    with initialize_config_dir(str(CONF), version_base=None):
        if name == "study":
            module.overrides_of_all(settings, overrides)
        if name == "table1":
            jobs = module.plan(replace(settings, seeds=1, methods=["oar_g"], shuffled=[]), overrides, folder)
            assert {job.settings.tracking.group for job in jobs} == {folder.name}, "one table, one group at W&B"


@given(st.text("ab1/.-_'\\\"ü=,()[]{}#:$ ", min_size=1) | st.text("ae1/.-_", min_size=1))
def test_what_is_quoted_is_read_as_it_stands(text: str) -> None:
    assume("${" not in text)  # an interpolation is one within quotes too
    assert OverridesParser.create().parse_override(f"output_dir={quoted(text)}").value() == text


def test_commands_are_found() -> None:
    assert len(FOUND) > 40
    page = (
        "```text\nmake no\n```\n`make one`\n```bash\nmake two \\\nA=1  # why\n```\nor `make\n three B=2`, not `make_it`"
    )
    assert commands(page) == ["make two  A=1  # why", "make three B=2"]


def test_the_cluster_script_trains_what_it_says() -> None:
    script = (ROOT / "docs" / "slurm.sbatch").read_text()
    (train,) = [command for command in commands(script) if "experiments.train" in command]
    ((_, arguments),) = programs(typed(train))
    cfg = validated(composed(*get_args_parser().parse_args(arguments).overrides), TrainConfig)
    assert (cfg.method.name, cfg.data.name, cfg.template) == ("oar_g", "math", "qwen_math")
    assert (cfg.profile, cfg.sync.name, cfg.resume) == ("paper", "checkpoint", "never")
    assert cfg.rollout.urls
    assert cfg.learner.ranks == sum(map(int, re.findall(r"ranks=(\d+);", script)))  # of both nodes
    assert f"--max-model-len {cfg.rollout.max_model_len} " in script


@pytest.mark.parametrize("command", FOUND)
def test_the_command_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, arguments in programs(typed(command)):
        if (CONF / f"{name}.yaml").exists():
            compose_and_validate(name, arguments, tmp_path)
        else:
            parse(name, arguments, monkeypatch)
