"""Seconds by stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds per stage of a step; a stage inside another is not counted twice."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        self._open.append(stage)
        try:
            yield
        finally:  # what was lost with an engine has taken its time as well
            self._open.pop()
            seconds = time.perf_counter() - started
            self._stages[stage] = self._stages.get(stage, 0.0) + seconds
            if self._open:
                self._stages[self._open[-1]] = self._stages.get(self._open[-1], 0.0) - seconds

    def seconds(self) -> dict[str, float]:
        """Every stage, and the total since the clock was made."""
        return self._stages | {"total": time.perf_counter() - self._started}
