"""The learner's processes, its ranks: which one this is, and what they tell each other.

Only the first rank talks to the engine, draws, grades, prints and writes; every rank then holds the whole batch as tensors and
takes its share of the micro-batches. What travels between ranks is tensors: nothing is unpickled.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from oar.common.errors import ConfigError, OarError, RankError
from oar.config import LearnerConfig
from oar.learner.collect import GradedBatch
from oar.method.batch import CompletionBatch

ANOTHER_TELLS_S = 3.0  # an error that all ranks meet is told by one of them, whose end ends the others within this time


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process is number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that talks to the world."""
        return self.rank == 0

    def share(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The tensors that the first rank gives, on the CPU of every rank; the others give None."""
        if self.count == 1:
            return dict(tensors or {})
        content = bytearray(b"" if tensors is None else save({name: t.contiguous() for name, t in tensors.items()}))
        length = torch.tensor([len(content)])
        dist.broadcast(length, src=0)
        buffer = (
            torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(int(length), dtype=torch.uint8)
        )
        dist.broadcast(buffer, src=0)
        return load(buffer.numpy().tobytes())

    def agree(self, flag: bool) -> bool:
        """What the first rank says, on every rank."""
        return bool(self.share({"flag": torch.tensor(flag)} if self.first else None)["flag"])

    def total(self, values: Tensor) -> Tensor:
        """`values`, in place the sum over all ranks."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until every rank is here."""
        if self.count > 1:
            dist.barrier()


ALONE = Ranks()


def share_graded(graded: GradedBatch | None, ranks: Ranks, device: torch.device) -> GradedBatch:
    """The first rank's batch on every rank. What is for people (texts, terms, shares of outcomes) stays with the first."""
    if ranks.count == 1 and graded is not None:
        return graded
    tensors = None
    if graded is not None:
        tensors = {name: torch.as_tensor(getattr(graded.batch, name)) for name in _BATCH}
        tensors |= {name: torch.as_tensor(getattr(graded, name)) for name in _GRADED}
        tensors |= {f"{_MARK}{name}": mark for name, mark in graded.marks.items()}
        tensors |= {name: known for name in _ASKED if (known := getattr(graded, name)) is not None}
    shared = ranks.share(tensors)
    if graded is not None:
        return graded
    batch = {name: shared[name].to(device) for name in _BATCH if name != "pad_id"}
    return GradedBatch(
        batch=CompletionBatch(**batch, pad_id=int(shared["pad_id"])),
        problems=[],
        texts=[],
        terms=[],
        rewards=shared["rewards"].to(device),
        streams=shared["streams"].to(device),
        correct=shared["correct"].to(device),
        marks={name.removeprefix(_MARK): mark.to(device) for name, mark in shared.items() if name.startswith(_MARK)},
        truncated=shared["truncated"].to(device),
        weight_version=int(shared["weight_version"]),
        outcomes={},
        **{name: shared[name].to(device) for name in _ASKED if name in shared},
    )


_BATCH = [field.name for field in fields(CompletionBatch)]
_GRADED = ("rewards", "streams", "correct", "truncated", "weight_version")
_ASKED = ("values", "spellings")  # None where a method does not ask for them
_MARK = "marks/"


@contextmanager
def joined(cfg: LearnerConfig) -> Iterator[Ranks]:
    """This process among the learner's `learner.ranks`, as torchrun tells by the environment.

    Raises ConfigError where that is not what was asked for, RankError where another rank died or does not answer.
    """
    count, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if count != cfg.ranks:
        raise ConfigError(
            f"learner.ranks must be the number of processes that torchrun starts, but is {cfg.ranks} and {count} started."
        )
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"Each rank needs a GPU of its own, but rank {local_rank} of this machine finds {torch.cuda.device_count()}: "
                "lower learner.ranks."
            )
        torch.cuda.set_device(local_rank)
    if count == 1 and cfg.compute_dtype == "float32":
        yield ALONE  # nothing to shard or to cast: an ordinary model without a process group
        return
    ranks = Ranks(int(os.environ.get("RANK", "0")), count)
    store = dist.HashStore() if count == 1 else None  # one rank needs no place to meet
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        timeout = timedelta(seconds=cfg.rank_timeout_s)
        dist.init_process_group(backend, timeout=timeout, rank=ranks.rank, world_size=count, store=store)
        yield ranks
        dist.destroy_process_group()
    except OarError:
        if not ranks.first:
            time.sleep(ANOTHER_TELLS_S)
        raise
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        time.sleep(ANOTHER_TELLS_S)
        raise RankError(
            f"Rank {ranks.rank} of the learner lost another one, which died or did not answer for {cfg.rank_timeout_s:g} s "
            f"(learner.rank_timeout_s): resume=auto goes on from the last checkpoint. {str(error).splitlines()[0]}"
        ) from error
