"""A program with a configuration folder of the user's gives it on to those that it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hydra
from oar.command_line.overrides import own_configuration

@hydra.main(version_base=None, config_path=None)
def main(config):
    print(own_configuration())

main()
"""


@pytest.mark.parametrize(("typed", "given"), [((), []), (("--config-dir", "mine"), ["--config-dir", "mine"])])
def test_the_folder_that_was_typed(typed: tuple[str, ...], given: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "hydra.run.dir=out", "hydra.output_subdir=null", *typed]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(given), done.stderr
