"""Whole runs share the taught base model, one engine on it, and one finished run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from oar.config import TrainConfig, validated
from oar.launch.start_model import model_folder
from oar.launch.supervisor import engine_options
from oar.learner.run import run_training
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.client.vllm import EngineClient
from oar.rollout.server.engine import VllmEngine
from oar.rollout.sync.checkpoint import transfer_folder
from tests.config.test_config import composed
from tests.conftest import SECRETS
from tests.programs import ROOT, as_typed, run

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


class FinishedRun(NamedTuple):
    """What others look at, and must not change."""

    folder: Path
    output: str
    weight_version: int  # of the engine after it


@pytest.fixture(scope="session")
def finished_run(base_engine: VllmEngine, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run with OAR-G of five steps that has offline W&B, every checkpoint, samples, and secrets in its environment."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    options = ("method=oar_g", "learner.steps=5", "learner.checkpoint_every=1", "learner.keep_checkpoints=5")
    options += ("learner.max_refills=1", "tracking.samples=12", f"rollout.url={base_engine.url}")
    with mock.patch.dict(os.environ, {**SECRETS, TOKEN_VARIABLE: base_engine.token}):
        code, output = run("train", *SMALL, *options, f"output_dir={folder}")
    assert code == 0, output
    return FinishedRun(folder, output, EngineClient(base_engine.url, 10, base_engine.token).weight_version())


def learn(folder: Path, base_model: Path, url: str, *overrides: str) -> Path:
    """The learner of a run in this process, without its supervisor and without W&B; returns the run's folder."""
    cfg = validated(composed(*SMALL, "tracking=disabled", f"rollout.url={url}", *overrides), TrainConfig)
    folder.mkdir()
    with as_typed("train", *overrides):
        run_training(cfg, folder, base_model, cfg.rollout.urls, transfer_folder(folder, None, 0))
    return folder
