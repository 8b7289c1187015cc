"""AdamW's state on disk: safetensors by torch.distributed.checkpoint, a file for each rank.

Any number of ranks reads what any number wrote. Ranks do not confer: torch would send pickled plans, and each rank can tell by
itself what it holds and, from the headers of the files, what it needs.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint import (
    CheckpointException,
    DefaultSavePlanner,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
    Metadata,
    SavePlan,
    load,
    save,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from oar.common.errors import CheckpointError
from oar.learner.distributed import Ranks


def save_optimizer(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
    """Write this rank's part of the state to `folder`, under "parameter/entry". Raises OSError."""
    state = {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
        if ranks.first or isinstance(value, DTensor)  # what all ranks hold alike is written once
    }
    writer = _OwnFile(str(folder), ranks.rank)
    with _alone():
        save(state, storage_writer=writer, planner=_OwnPart(), no_dist=True, use_collectives=False)


def load_optimizer(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Put back what `save_optimizer` wrote, as far as this rank holds it. Raises CheckpointError."""
    reader = HuggingFaceStorageReader(str(folder))
    try:
        found = reader.read_metadata().state_dict_metadata
    except SafetensorError as error:
        raise CheckpointError(
            f"The optimizer's state in {folder} is not in safetensors ({error}); it is not read."
        ) from error
    parameters = dict(model.named_parameters())
    state: dict[str, Any] = {}
    for key, saved in found.items():
        scalar = isinstance(saved, TensorStorageMetadata) and not saved.size  # AdamW's count of its steps
        state[key] = torch.zeros(()) if scalar else torch.zeros_like(parameters[key.rsplit("/", 1)[0]])
    try:
        with _alone():
            load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"The optimizer's state in {folder} does not fit the model: {reason}.") from error
    for key, value in state.items():
        name, entry = key.rsplit("/", 1)
        optimizer.state[parameters[name]][entry] = value


class _OwnPart(DefaultSavePlanner):
    """Writes what this rank holds, which is never all of it."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})


class _OwnFile(HuggingFaceStorageWriter):
    """Names the file after the rank."""

    def __init__(self, path: str, rank: int) -> None:
        super().__init__(path, save_distributed=True)
        self._rank = rank

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [replace(plan, storage_data={"shard_index": self._rank + 1}) for plan in plans]


@contextmanager
def _alone() -> Iterator[None]:
    """torch warns of what is meant here: that this rank works by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
