"""Bringing the learner's weights to the engine by way of a safetensors file in memory-backed storage."""

import hashlib
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import PreTrainedModel

from oar.errors import EngineError, EngineLostError, SyncError
from oar.rollout.client import UNKNOWN_VERSION, EngineClient
from oar.weights import full_weights

_TMPFS = Path("/dev/shm")


def transfer_folder(run_folder: Path, parent: Path | None = None) -> Path:
    """Where the weights of a run pass through: a folder of its own in `parent` (sync.folder), else in tmpfs, else in the run's.

    The same run gets the same folder again, so that a resumed run clears what a killed one left.
    """
    if parent is None:
        parent = _TMPFS if os.access(_TMPFS, os.W_OK) else run_folder
    return parent.resolve() / f"oar-weights-{hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:12]}"


class CheckpointSync:
    """Weight sync `checkpoint`: a safetensors file, `reload_weights`, prefix-cache reset, and the version last.

    `folder` is this sync's own (see `transfer_folder`): made for each push and deleted after it. While the engine loads them
    its version is unknown, so that a push that fails midway cannot be mistaken for the weights of before.
    """

    def __init__(self, client: EngineClient, folder: Path) -> None:
        self._client = client
        self._folder = folder

    def push(self, model: PreTrainedModel, version: int) -> None:
        """Make the engine hold `model`'s weights under `version` (>= 0). Raises SyncError, or EngineLostError."""
        try:
            try:
                # First, because ranks that hold parts of the model take part in it, and in nothing of what follows.
                self._write(model)
                self._client.set_weight_version(UNKNOWN_VERSION)
                self._client.reload_weights(str(self._folder))
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._client.reset_prefix_cache()
            self._client.set_weight_version(version)
            held = self._client.weight_version()
        except EngineLostError:
            raise
        except EngineError as error:
            raise SyncError(
                f"weight version {version} did not reach the engine: {error}"
                " Check the engine's log, and that it was started with VLLM_SERVER_DEV_MODE=1."
            ) from error
        if held != version:
            raise SyncError(
                f"the engine reports weight version {held} after being given {version}; another run is using this server."
            )

    def _write(self, model: PreTrainedModel) -> None:
        state = {name: weight.cpu().contiguous() for name, weight in full_weights(model)}
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            save_file(state, self._folder / "model.safetensors", metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            needed = sum(tensor.nbytes for tensor in state.values()) / 2**30
            raise SyncError(
                f"cannot write {needed:.2f} GiB of weights to {self._folder} ({error});"
                " free memory there or name another folder in sync.folder."
            ) from error
