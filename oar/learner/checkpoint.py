"""Checkpoints that are whole or absent: written beside, verified by hash, moved into place.

A checkpoint is an ordinary Hugging Face folder plus the optimizer's state as safetensors and `state.json`. No random
state is saved: every draw of a run derives from its seed and step (oar/seeding.py), so there is none.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oar.config import TrainConfig
from oar.errors import CheckpointError

OPTIMIZER_FILE = "optimizer.state"  # in safetensors, but not by name: vLLM would load it as weights of the model
STATE_FILE = "state.json"


def save_checkpoint(
    folder: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    *,
    keep: int,
) -> Path:
    """Write `folder/step_<step>` and drop all but the last `keep`.

    `state` (JSON) goes into state.json beside the hashes of every file. On any failure to write, what was there before
    stays as it was and CheckpointError says so.
    """
    final, temporary = folder / f"step_{step:06d}", folder / f".step_{step:06d}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        save_file(_flat_optimizer_state(model, optimizer), temporary / OPTIMIZER_FILE)
        files = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
        (temporary / STATE_FILE).write_text(json.dumps({**state, "step": step, "files": files}, indent=1) + "\n")
        for path in temporary.iterdir():
            _flush_to_disk(path)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _flush_to_disk(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written to {folder} ({error}); earlier checkpoints are untouched: "
            "make room there and start again with resume=auto."
        ) from error
    for old in _checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step, or None. Half-written ones do not count: they never got their name."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def resumable_checkpoint(folder: Path, cfg: TrainConfig) -> Path | None:
    """The run folder's last checkpoint, intact and of a run with these settings; None where there is none yet.

    Raises CheckpointError for one that is damaged, belongs to other settings or lies past the steps asked for.
    """
    checkpoint = latest_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        return None
    if load_state(checkpoint)["identity"] != cfg.identity():
        raise CheckpointError(
            f"{checkpoint} belongs to a run with other settings: resume with the settings in its run's config.yaml, or "
            "choose another output_dir."
        )
    if checkpoint_step(checkpoint) > cfg.learner.steps:
        raise CheckpointError(
            f"{checkpoint} is past learner.steps={cfg.learner.steps}: ask for at least as many steps, or choose another "
            "output_dir."
        )
    return checkpoint


def checkpoint_step(checkpoint: Path) -> int:
    """How many steps were done when it was written."""
    return int(checkpoint.name.removeprefix("step_"))


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's state.json, after every file's hash was checked.

    Raises CheckpointError where a file is missing or differs from what was written.
    """
    advice = f"delete the folder {checkpoint} to go on from the one before it"
    try:
        state: dict[str, Any] = json.loads((checkpoint / STATE_FILE).read_text())
        for name, digest in state["files"].items():
            if _sha256(checkpoint / name) != digest:
                raise CheckpointError(
                    f"The checkpoint's file {name} is not what was written (its hash differs): {advice}."
                )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"The checkpoint cannot be read ({type(error).__name__}: {error}): {advice}.") from error
    return state


def load_optimizer(checkpoint: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Put the saved optimizer state back; parameters are matched by name. Raises CheckpointError where it is no safetensors."""
    try:
        flat = load_file(checkpoint / OPTIMIZER_FILE)
    except SafetensorError as error:
        raise CheckpointError(
            f"{checkpoint / OPTIMIZER_FILE} is not in safetensors ({error}); it is not read."
        ) from error
    for name, parameter in model.named_parameters():
        values = {key.rsplit("/", 1)[1]: value for key, value in flat.items() if key.rsplit("/", 1)[0] == name}
        if values:
            optimizer.state[parameter] = {
                key: value if value.dim() == 0 else value.to(parameter.device) for key, value in values.items()
            }


def _flat_optimizer_state(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
