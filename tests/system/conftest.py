"""Whole runs share the taught base model and one engine on it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oar.config import TrainConfig, validated
from oar.launch.start_model import model_folder
from oar.launch.supervisor import engine_options
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.server.engine import VllmEngine
from tests.config.test_config import composed

ROOT = Path(__file__).parents[2]
# Small enough for a step to take seconds; large enough that groups have an advantage.
SMALL = (
    "learner.batch_size=32",
    "evaluation.curve_every=2",
    "evaluation.curve_problems=2",
    "evaluation.final_problems=3",
    "evaluation.k=2",
    "probe.warmup_steps=2",
    "tracking.samples_every=2",
)


@pytest.fixture(scope="session")
def base_model() -> Path:
    """The default base model, taught where it is not there yet (about a minute and a half)."""
    return (ROOT / model_folder(validated(composed(), TrainConfig).model, print)).resolve()


@pytest.fixture(scope="session")
def base_engine(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """An engine on the base model, which every run of the session is attached to in turn."""
    cfg = validated(composed(), TrainConfig)
    options = engine_options(cfg.rollout, cfg.model, base_model, tmp_path_factory.mktemp("engine"))
    with VllmEngine(options) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(TOKEN_VARIABLE, running.token)  # for the runs
        yield running


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


def run(module: str, *overrides: str, timeout_s: float = 900) -> tuple[int, str]:
    """Run to the end: exit code and output. A run that hangs is interrupted, and fails the test."""
    process = start(module, *overrides)
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=200)
        pytest.fail(f"hangs: {output[-2000:]}")
    return process.returncode, output


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", timeout_s: float = 600) -> None:
    """Wait until `condition()`; fail where the process ends or time runs out before."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()[0][-2000:]
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)
