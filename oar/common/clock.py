"""Seconds by stage."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Clock:
    """Seconds per stage of a step; a stage inside another is not counted twice.

    A GPU runs behind the CPU that gives it work. On one (`device`) the clock waits at both ends of a stage until all work is
    done: else a stage's work would be charged to whichever stage first asks for a result.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Without a device, for stages that give none any work."""
        self._device = device
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = self._now()
        self._open.append(stage)
        try:
            yield
        finally:  # what was lost with an engine has taken its time as well
            self._open.pop()
            seconds = self._now() - started
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds
            if self._open:
                self._stages[self._open[-1]] = self._stages.get(self._open[-1], 0.0) - seconds

    def add(self, stages: Mapping[str, float]) -> None:
        """What was done for the step before the clock was made; the total grows as well."""
        for stage, seconds in stages.items():
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds
            self._started -= seconds

    def stages(self) -> dict[str, float]:
        """Every stage."""
        return dict(self._stages)

    def seconds(self) -> dict[str, float]:
        """Every stage, and the total since the clock was made."""
        return self._stages | {"total": self._now() - self._started}

    def _now(self) -> float:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
