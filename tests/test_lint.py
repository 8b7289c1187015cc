"""`make lint` runs beside the other tests: with an empty cache mypy alone takes a minute."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.system
def test_lint() -> None:
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-o", "setup", "lint"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
