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
    before = torch.cuda.memory_allocated() if FULL else 0
    if FULL:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    yield found
    wait()
    found.seconds = time.perf_counter() - began
    found.peak = float(torch.cuda.max_memory_allocated()) if FULL else 0.0
    found.above = found.peak - before


def milliseconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least of some runs, after one that warms up."""
    work()
    return 1000 * min(_seconds(work) for _ in range(repeats))


def _seconds(work: Callable[[], object]) -> float:
    with spent() as found:
        work()
    return found.seconds


def kernels(work: Callable[[], object]) -> str:
    """Which of torch's attention functions `work` calls, and the GPU kernel that takes the longest."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if FULL:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        work()
        wait()
    averages = profile.key_averages()
    asked = "_scaled_dot_product"
    functions = sorted({one.key.split(asked)[-1].strip("_") for one in averages if asked in one.key})
    on_gpu = [one for one in averages if one.device_type == torch.autograd.DeviceType.CUDA]
    longest = max(on_gpu, key=lambda one: one.self_device_time_total).key[:60] if on_gpu else ""
    return " ".join(filter(None, [", ".join(functions) or "none", f"[{longest}]" if longest else ""]))


def relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, in shares of the reference's largest number."""
    ours, reference = ours.detach().double().cpu(), reference.detach().double().cpu()
    scale = float(reference.abs().max())
    return float((ours - reference).abs().max()) / (scale or 1.0)
