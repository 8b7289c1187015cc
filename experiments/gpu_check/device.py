"""Where the check runs and at which size, and what something took there: seconds with the device in step, and peak memory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

FULL = torch.cuda.is_available()
DEVICE = torch.device("cuda" if FULL else "cpu")
GIB = 2**30

Value = TypeVar("Value")


def sized(full: Value, small: Value) -> Value:
    """The size of something on a GPU, or the hundredth that is run without one."""
    return full if FULL else small


def wait() -> None:
    """Until the device has done what it was given."""
    if FULL:
        torch.cuda.synchronize()


@dataclass(slots=True)
class Spent:
    """seconds; peak: bytes of the allocator at most, and above: that less what was held before; 0 without a GPU."""

    seconds: float = 0.0
    peak: float = 0.0
    above: float = 0.0


@contextmanager
def spent() -> Iterator[Spent]:
    """What the block takes; known when it has ended."""
    found = Spent()
    wait()
    if FULL:
        torch.cuda.reset_peak_memory_stats()
    before, began = torch.cuda.memory_allocated(), time.perf_counter()  # 0 without a GPU
    yield found
    wait()
    found.seconds, found.peak = time.perf_counter() - began, float(torch.cuda.max_memory_allocated())
    found.above = found.peak - before


def best_of_three(work: Callable[[], object]) -> Spent:
    """The fastest of three runs, after one that warms up."""
    work()
    runs = []
    for _ in range(3):
        with spent() as took:
            work()
        runs.append(took)
    return min(runs, key=lambda run: run.seconds)


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, in shares of the reference's largest number."""
    ours, reference = ours.detach().double().cpu(), reference.detach().double().cpu()
    scale = float(reference.abs().max())
    return float((ours - reference).abs().max()) / (scale or 1.0)
