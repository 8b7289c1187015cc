"""Bringing the learner's weights to the engine: the ways there are."""

from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

from oar.common.errors import ConfigError
from oar.config import SyncConfig
from oar.model.parameters import Gather, full_weights
from oar.rollout.client.vllm import Engine
from oar.rollout.sync.checkpoint import CheckpointSync

# What a server is started with, beside VLLM_SERVER_DEV_MODE=1, for weights to reach it in each way.
SERVER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "checkpoint": (),
    "nccl": ("--weight-transfer-config", '{"backend": "nccl"}'),
    "ipc": (
        *("--weight-transfer-config", '{"backend": "oar_ipc"}'),
        *("--worker-extension-cls", "oar.rollout.sync.ipc_worker.Extension"),
    ),
}


class WeightSync(Protocol):
    """A way to bring weights to the engine."""

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Make every server hold `model`'s weights under `version` (>= 0). Raises SyncError.

        They are taken from `gather` (as from `full_weights`), once, and as late as can be: other ranks may have to take part.
        """

    def close(self) -> None:
        """Give up what was opened for it. Never raises: a run that has ended must not fail here."""


def make_sync(cfg: SyncConfig, engine: Engine, folder: Path, dtype: torch.dtype | None = None) -> WeightSync:
    """The way that `sync.name` chooses: weights travel in `dtype`, the engine's, files pass through `folder`.

    Raises ConfigError for one that cannot work.
    """
    refuse_without_gpu(cfg)
    if cfg.name == "nccl":
        from oar.rollout.sync.nccl import (
            NcclSync,  # this and the next load vLLM, which nobody else in the learner needs
        )

        return NcclSync(engine, cfg.timeout_s, dtype)
    if cfg.name == "ipc":
        from oar.rollout.sync.ipc import IpcSync

        return IpcSync(engine, dtype)
    return CheckpointSync(engine, folder, dtype)


def refuse_without_gpu(cfg: SyncConfig) -> None:
    """Raises ConfigError where the way of `sync.name` needs a GPU and there is none."""
    if cfg.name != "checkpoint" and not torch.cuda.is_available():
        raise ConfigError(
            f"sync={cfg.name} carries weights from GPU memory to GPU memory, but torch finds no GPU here: use sync=checkpoint."
        )
