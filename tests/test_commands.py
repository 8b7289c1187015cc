"""Every command of the README and of docs/ is one that works, as far as that can be told without running it."""

import importlib
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from oar.config import validated
from oar.overrides import CONF
from tests.test_config import composed

ROOT = CONF.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").iterdir())]
START = r"(?:make [a-z]|(?:\S*/)?python (?:-m |experiments/))"


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


FOUND = sorted({command for page in PAGES for command in commands(page.read_text())})


def typed(command: str) -> list[str]:
    """As the shell hands it on, its comment and redirection left out and its placeholders filled."""
    words = shlex.split(command.replace("'folders=[...]'", "folders=[FOLDER]"), comments=True)
    words = words[: next((at for at, word in enumerate(words) if word in (">", "|", "&&")), len(words))]
    filled = [re.sub(r"<name>", "grpo", re.sub(r"\$\w+", "FOLDER", word)) for word in words]
    return [re.sub(r" \.\.\.$", "", word) for word in filled if word not in ("...", "PATH")]


def programs(words: list[str]) -> list[list[str]]:
    """The Python programs that a command starts, each with its arguments: `make` is asked what it would run."""
    if words[0] != "make":
        return [words]
    said = subprocess.run(
        ["make", "-n", "-o", "setup", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    lines = [shlex.split(line) for line in said.stdout.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line[:2] == [".venv/bin/python", "-m"]]


def check(name: str, arguments: list[str], folder: Path) -> None:
    """Compose the configuration of experiments/NAME with these arguments, every run of a sweep, and validate it."""
    module = importlib.import_module(f"experiments.{name}")
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"experiments.{name}.__main__")
    if not (CONF / f"{name}.yaml").exists():
        with pytest.raises(SystemExit) as ended:  # argparse
            module.main([*arguments, "--help"])
        assert ended.value.code == 0
        return
    given = get_args_parser().parse_args(arguments)
    own = [one for one in given.overrides if not one.startswith("hydra")]
    runs = [own]
    if given.multirun:
        parsed = OverridesParser.create().parse_overrides(own)
        runs = BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]
    for overrides in runs[:1] + runs[1:][-1:]:  # the first and the last hold the ends of every list of values
        validate(name, module, overrides, folder)


def validate(name: str, module: ModuleType, overrides: list[str], folder: Path) -> None:
    config = composed(*overrides, name=name)
    if name == "plan":
        module.settings_of(config)
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
            module.plan(replace(settings, seeds=1, methods=["oar_g"]), overrides, folder)


def test_commands_are_found() -> None:
    assert len(FOUND) > 40
    page = (
        "```text\nmake no\n```\n`make one`\n```bash\nmake two \\\nA=1  # why\n```\nor `make\n three B=2`, not `make_it`"
    )
    assert commands(page) == ["make two  A=1  # why", "make three B=2"]


@pytest.mark.parametrize("command", FOUND)
def test_the_command_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in programs(typed(command)):
        assert words[1] != "-m" or words[2].split(".")[0] in ("experiments", "pytest"), words
        if words[1] == "-m" and words[2].startswith("experiments."):
            check(words[2].removeprefix("experiments."), words[3:], tmp_path)
