"""Bringing the learner's weights to the engine: what every way of doing so has in common, and the way by way of a file."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import SyncConfig
from oar.errors import ConfigError, EngineError, EngineLostError, SyncError
from oar.rollout.client import UNKNOWN_VERSION, Engine, EngineClient
from oar.rollout.servers import each
from oar.weights import Gather, full_weights

TMPFS = Path("/dev/shm")
MARGIN = 1.1  # of the weights' own bytes: engines and NCCL keep some MB in tmpfs as well

# What a server is started with, beside VLLM_SERVER_DEV_MODE=1, for weights to reach it in each way.
SERVER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "checkpoint": (),
    "nccl": ("--weight-transfer-config", '{"backend": "nccl"}'),
    "ipc": (
        *("--weight-transfer-config", '{"backend": "oar_ipc"}'),
        *("--worker-extension-cls", "oar.rollout.ipc_worker.Extension"),
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
        from oar.rollout.nccl import NcclSync  # this and the next load vLLM, which nobody else in the learner needs

        return NcclSync(engine, cfg.timeout_s, dtype)
    if cfg.name == "ipc":
        from oar.rollout.ipc import IpcSync

        return IpcSync(engine, dtype)
    return CheckpointSync(engine, folder, dtype)


def refuse_without_gpu(cfg: SyncConfig) -> None:
    """Raises ConfigError where the way of `sync.name` needs a GPU and there is none."""
    if cfg.name != "checkpoint" and not torch.cuda.is_available():
        raise ConfigError(
            f"sync={cfg.name} carries weights from GPU memory to GPU memory, but torch finds no GPU here: use sync=checkpoint."
        )


@contextlib.contextmanager
def weight_update(servers: Sequence[EngineClient], version: int) -> Iterator[None]:
    """Around the transfer itself: pause, the transfer, prefix-cache reset, resume, and the version last, when all have it.

    While it is under way the version is unknown, so that what a failure leaves cannot be mistaken for the weights of before.
    A server that holds some of the new weights must not run, so after a failure all stay paused until a push succeeds.
    Raises SyncError, or EngineLostError where a server is gone or hangs.
    """
    try:
        each(servers, lambda server: server.set_weight_version(UNKNOWN_VERSION))
        each(servers, EngineClient.pause)
        yield
        each(servers, EngineClient.reset_prefix_cache)
        each(servers, EngineClient.resume)
        each(servers, lambda server: server.set_weight_version(version))
        held = each(servers, EngineClient.weight_version)
    except EngineError as error:
        # A run may go on with another engine in the place of one that is lost (rollout.restart).
        kind = EngineLostError if isinstance(error, EngineLostError) else SyncError
        raise kind(
            f"weight version {version} did not reach the engine: {error}"
            " Check the engine's log, and that it was started with VLLM_SERVER_DEV_MODE=1."
        ) from error
    for server, came in zip(servers, held, strict=True):
        if came != version:
            raise SyncError(
                f"the engine at {server.url} reports weight version {came} after being given {version};"
                " another run is using this server."
            )


def start_weight_update(server: EngineClient) -> None:
    """Begin an update, after ending one that was left open, by a push that failed or a learner that was killed."""
    try:
        server.start_weight_update()
    except EngineError as error:
        if "already active" not in str(error):
            raise
        server.finish_weight_update()
        server.start_weight_update()


def transfer_folders(run_folder: Path, parent: Path | None = None) -> list[Path]:
    """Where the weights of a run may pass through, the best first: in `parent` (sync.folder), else in tmpfs or the run's folder.

    The same run gets the same folders again, so that a resumed run clears what a killed one left.
    """
    name = f"oar-weights-{hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:12]}"
    own = [TMPFS, run_folder] if os.access(TMPFS, os.W_OK) else [run_folder]
    return [folder.resolve() / name for folder in ([parent] if parent is not None else own)]


def transfer_folder(run_folder: Path, parent: Path | None, size: int) -> Path:
    """The first of the `transfer_folders` with room for weights of `size` bytes, else the last, which is then told."""
    *better, last = transfer_folders(run_folder, parent)
    for folder in better:
        clear(folder)
        free = shutil.disk_usage(folder.parent).free
        if free >= MARGIN * size:
            return folder
        print(
            f"weights pass through {last}: {folder.parent} has {free / 2**30:.2f} GiB free, and they are {size / 2**30:.2f}",
            flush=True,
        )
    return last


def clear(folder: Path) -> None:
    """Delete the folder that a push made, unless it is another user's. Never raises."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


class CheckpointSync:
    """Weight sync `checkpoint`: a safetensors file that every server reads again (`reload_weights`).

    `folder` is this sync's own (see `transfer_folder`), and all servers must see it, as the same user: made for each push,
    deleted after it. What others put in its place is neither used nor deleted: they could read or replace the weights.
    """

    def __init__(self, engine: Engine, folder: Path, dtype: torch.dtype | None = None) -> None:
        self._servers, self._dtype = engine.servers, dtype
        self._folder = folder

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Make every server hold `model`'s weights under `version` (>= 0). Raises SyncError."""
        try:
            self._write(gather(model, self._dtype))
            with weight_update(self._servers, version):
                each(self._servers, lambda server: server.reload_weights(str(self._folder)))
        finally:
            self.close()

    def close(self) -> None:
        """Delete the file."""
        clear(self._folder)

    def _write(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        state = {name: weight.cpu().contiguous() for name, weight in weights}
        try:
            clear(self._folder)
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700)
            save_file(state, self._folder / "model.safetensors", metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            needed = sum(tensor.nbytes for tensor in state.values()) / 2**30
            raise SyncError(
                f"cannot write {needed:.2f} GiB of weights to {self._folder} ({error});"
                " free memory there or name another folder in sync.folder."
            ) from error
