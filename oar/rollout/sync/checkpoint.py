"""Weight sync by way of a file that the engine reads."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.errors import SyncError
from oar.model.parameters import Gather, full_weights
from oar.rollout.client.servers import each
from oar.rollout.client.vllm import Engine
from oar.rollout.sync.update import weight_update

TMPFS = Path("/dev/shm")
MARGIN = 1.1  # of the weights' own bytes: engines and NCCL keep some MB in tmpfs as well


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
