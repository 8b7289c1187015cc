"""Checkpoints that are whole or absent: written beside, verified by hash, moved into place.

A checkpoint is an ordinary Hugging Face folder plus the optimizer's state as safetensors and, written last, `state.json` with
the hash of every file. Where an adapter is trained, the folder holds the merged weights, and the adapter stands beside them.
The number of ranks that wrote it does not matter to those that read it. No random state is saved: every draw of a run derives
from its seed and step (oar/common/seeding.py), so there is none.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oar.common.errors import CheckpointError
from oar.config import TrainConfig
from oar.learner.distributed import ALONE, Ranks
from oar.learner.optimizer_state import save_optimizer
from oar.model.lora import ADAPTER_FOLDER, adapter_weights, save_adapter
from oar.model.parameters import full_weights, take_part

OPTIMIZER_FOLDER = "optimizer"  # a folder of its own: beside the model's files vLLM would load it as weights
STATE_FILE = "state.json"
CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step_\d+")


def save_checkpoint(
    folder: Path,
    step: int,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    *,
    keep: int,
    ranks: Ranks = ALONE,
    beside: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Write `folder/step_<step>` and drop all but the last `keep` and the best one.

    All ranks call it, on a folder that all of them see. `state` (JSON) goes into state.json beside the hashes of every file;
    its "accuracy", where there is one, decides which checkpoint is the best. `beside` writes into the folder what else a run has
    to hold; the first rank calls it. A step that has its checkpoint keeps it. On any failure to write, what was there before
    stays as it was and CheckpointError says so.
    """
    final = checkpoint_of(folder, step)
    if final.is_dir():
        return final  # the engine was lost beside the save, and the step's end is repeated: the weights are the same
    temporary = folder / f".{final.name}.tmp"
    try:
        if ranks.first:
            for left in folder.glob(".step_*.tmp"):  # by a run that was killed while it saved
                shutil.rmtree(left)
            temporary.mkdir(parents=True)
        ranks.wait()
        save_optimizer(temporary / OPTIMIZER_FOLDER, model, optimizer, ranks)
        adapter = adapter_weights(model)
        if ranks.first:
            model.save_pretrained(temporary, state_dict={name: weight.cpu() for name, weight in full_weights(model)})
            tokenizer.save_pretrained(temporary)
            if adapter:
                save_adapter(model, adapter, temporary / ADAPTER_FOLDER)
            beside(temporary)
        else:
            take_part(model)
        ranks.wait()
        if ranks.first:
            _seal(temporary, {**state, "step": step})
            temporary.rename(final)
            _flush_to_disk(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint of step {step} could not be written to {folder} ({error}); earlier checkpoints are untouched: "
            "make room there and start again with resume=auto."
        ) from error
    if ranks.first:
        best = best_checkpoint(folder)
        for old in _checkpoints(folder)[:-keep]:
            if old != best:
                shutil.rmtree(old.rename(folder / f".{old.name}.tmp"))  # never seen half deleted
    return final


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest accuracy, the later of two alike; None where no accuracy was measured."""
    measured = {path: accuracy for path in _checkpoints(folder) if (accuracy := noted(path, "accuracy")) is not None}
    return max(measured, key=lambda path: (measured[path], path.name), default=None)


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step, or None. Half-written ones do not count: they never got their name."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def nearest_checkpoint(folder: Path, updates: int) -> Path | None:
    """The checkpoint in `folder` whose weights have seen a number of updates nearest to `updates`; of two the earlier one."""
    return min(_checkpoints(folder), key=lambda checkpoint: abs(checkpoint_step(checkpoint) - updates), default=None)


def resumable_checkpoint(folder: Path, cfg: TrainConfig) -> Path | None:
    """The run folder's last checkpoint, intact and of a run with these settings; None where there is none yet.

    Raises CheckpointError for one that is damaged, belongs to other settings or lies past the steps asked for.
    """
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None:
        return None
    if load_state(checkpoint)["identity"] != cfg.identity():
        from oar.config.saved import changed_settings  # it needs omegaconf, and this sentence alone needs it

        changed = changed_settings(folder / "config.yaml", cfg)
        raise CheckpointError(
            f"{checkpoint} belongs to a run with other settings{f' ({changed})' if changed else ''}: resume with the settings "
            "in its run's config.yaml, or choose another output_dir."
        )
    if checkpoint_step(checkpoint) > cfg.learner.steps:
        raise CheckpointError(
            f"{checkpoint} is past learner.steps={cfg.learner.steps}: ask for at least as many steps, or choose another "
            "output_dir."
        )
    return checkpoint


def checkpoint_of(folder: Path, step: int) -> Path:
    """What the checkpoint of a step is called in the folder of checkpoints."""
    return folder / f"step_{step:06d}"


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
        found = _hashes(checkpoint / name for name in state["files"])
        for (name, digest), now in zip(state["files"].items(), found, strict=True):
            if now != digest:
                raise CheckpointError(
                    f"The checkpoint's file {name} is not what was written (its hash differs): {advice}."
                )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"The checkpoint cannot be read ({type(error).__name__}: {error}): {advice}.") from error
    return state


def _seal(checkpoint: Path, state: dict[str, Any]) -> None:
    """Write state.json with the hash of every file that is there, and bring all of it to the disk."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    names = [path.relative_to(checkpoint).as_posix() for path in files]
    state = {**state, "files": dict(zip(names, _hashes(files), strict=True))}
    (checkpoint / STATE_FILE).write_text(json.dumps(state, indent=1) + "\n")
    for path in (*checkpoint.rglob("*"), checkpoint):
        _flush_to_disk(path)


def noted(checkpoint: Path, name: str) -> float | None:
    """A number of the checkpoint's `state`, None where there is none.

    Of a damaged one nothing is known; who resumes from it is told.
    """
    try:
        found = json.loads((checkpoint / STATE_FILE).read_text()).get(name)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, float) else None


def _checkpoints(folder: Path) -> list[Path]:
    # A copy that somebody made of one, step_000010_kept, is none.
    return sorted(path for path in folder.glob("step_*") if _NAME.fullmatch(path.name) and path.is_dir())


def _hashes(paths: Iterable[Path]) -> list[str]:
    """SHA-256 of files, side by side: hashing of many gigabytes takes minutes."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_sha256, paths))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
