"""`make lint` runs beside the other tests: with an empty cache mypy alone takes a minute."""

import subprocess

import pytest

from tests.programs import ROOT, SHELL


@pytest.mark.system
def test_lint() -> None:
    command = ["make", "-o", "setup", "lint"]
    done = subprocess.run(command, cwd=ROOT, env=SHELL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
