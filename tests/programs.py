"""Programs of experiments/ as tests start them: in this process, or in one of their own that can be interrupted."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TextIO
from unittest import mock

import torch

ROOT = Path(__file__).parents[1]
# What somebody types make in: `make test ARGS=...` hands its own flags and variables to its tests.
SHELL = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}


def start(module: str, *overrides: str) -> "subprocess.Popen[str]":
    """`python -m experiments.<module>` in a session of its own, output joined."""
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{module}", *overrides],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A test session started in the background ignores SIGINT, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(module: str, *overrides: str) -> tuple[int, str]:
    """`python -m experiments.<module>` in this process, which has imported torch already: exit code and output.

    The output holds that of the processes which the program starts.
    """
    name = f"experiments.{module}.__main__" if (ROOT / "experiments" / module).is_dir() else f"experiments.{module}"
    code: int = 0
    with tempfile.TemporaryFile("w+", buffering=1) as output, as_typed(module, *overrides), written_to(output):
        try:
            import_module(name).main()
        except SystemExit as end:
            code = int(end.code or 0)
        output.seek(0)
        return code, output.read()


@contextmanager
def as_typed(module: str, *overrides: str) -> Iterator[None]:
    """This process has the command line of the program, and afterwards the state that it had before."""
    threads = torch.get_num_threads()
    with (
        mock.patch.dict(os.environ),
        mock.patch("sys.argv", [module, *overrides]),
        mock.patch("sys.orig_argv", ["python", "-m", f"experiments.{module}", *overrides]),
        mock.patch("logging.config.dictConfig"),  # Hydra would silence the loggers of other tests
    ):
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@contextmanager
def written_to(output: TextIO) -> Iterator[None]:
    """What this process and its children write goes to `output`."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        with redirect_stdout(output), redirect_stderr(output):
            yield
    finally:
        for descriptor, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", timeout_s: float = 600) -> None:
    """Wait until `condition()`; fail where the process ends or time runs out before."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()[0][-2000:]
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)
