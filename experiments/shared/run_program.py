"""Another program of this repository, as a process of its own."""

import subprocess
import sys
from collections.abc import Sequence

from oar.command_line.overrides import own_configuration
from oar.common.errors import OarError


def run_program(program: Sequence[str]) -> None:
    """Run a module with its overrides and wait; it shows its own progress. Raises OarError where it fails."""
    if code := subprocess.run([sys.executable, "-m", *program, *own_configuration()], check=False).returncode:
        raise OarError(f"{program[0]} ended with exit code {code}, see above: run the same command again to go on.")
