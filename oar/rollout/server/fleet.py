"""Servers of one model in processes of their own, started, watched and ended as one."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from oar.common.errors import ConfigError
from oar.rollout.access import new_token
from oar.rollout.client.parallel import together
from oar.rollout.server.engine import EngineOptions, VllmEngine


class VllmFleet:
    """Running servers: `with VllmFleet(options) as fleet: engine_at(fleet.urls, timeout_s, fleet.token)`.

    Raises what `VllmEngine` raises.
    """

    def __init__(self, options: Sequence[EngineOptions]) -> None:
        self.token = options[0].token or new_token()  # what whoever speaks to them has to show
        self._engines = [VllmEngine(one, self.token) for one in options]
        self._logs = [one.log_path for one in options]

    @property
    def urls(self) -> list[str]:
        """Where they listen, once they have been started."""
        return [engine.url for engine in self._engines]

    def start(self) -> None:
        """Start all of them and return when all are healthy; where one cannot, none is left."""
        healthy = False
        try:
            for engine in self._engines:
                engine.launch()  # not in threads: a process that another thread creates after `stop` would stay
            wait: list[Callable[[], None]] = [engine.wait_until_healthy for engine in self._engines]
            together(wait)
            healthy = True
        finally:
            if not healthy:
                self.stop()

    def restart(self) -> None:
        """End what is left of them and start them again on the same ports: which of several hangs, nobody can tell."""
        self.stop()
        self.start()

    def is_sick(self) -> bool:
        """Whether one of them lives without answering (`VllmEngine.is_sick`)."""
        return any(engine.is_sick() for engine in self._engines)

    def poll(self) -> int | None:
        """The exit code of one that has ended, or None while all run."""
        return self._telling.poll()

    @property
    def log_path(self) -> Path:
        """The log of one that has ended; of the first while all run."""
        return self._logs[self._engines.index(self._telling)]

    def tail(self, lines: int = 20) -> str:
        """The last lines of that log."""
        return self._telling.tail(lines)

    def stop(self) -> None:
        """End them and all that they started. Idempotent."""
        stop: list[Callable[[], None]] = [engine.stop for engine in self._engines]
        together(stop)

    def __enter__(self) -> "VllmFleet":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _telling(self) -> VllmEngine:
        ended = [engine for engine in self._engines if engine.poll() is not None]
        return ended[0] if ended else self._engines[0]


class KeptFleet:
    """Servers that serve one run after the other; started anew only for a run that needs others, or where they have ended."""

    def __init__(self) -> None:
        self._fleet: VllmFleet | None = None
        self._starting: VllmFleet | None = None
        self._kind: list[EngineOptions] = []

    def fitting(self, options: Sequence[EngineOptions]) -> VllmFleet:
        """Running servers as `options` ask for. Their log is the one of the run that they were started for."""
        kind = [replace(one, log_path=Path()) for one in options]
        if self._fleet is None or kind != self._kind or self._fleet.poll() is not None or self._fleet.is_sick():
            self.stop()
            self._starting = fleet = VllmFleet(options)
            try:
                fleet.start()
            finally:
                self._starting = None
            self._fleet, self._kind = fleet, kind
        return self._fleet

    def give_up_starting(self) -> None:
        """End servers that another thread starts and waits for: `fitting` raises EngineError there."""
        if (fleet := self._starting) is not None:
            fleet.stop()

    def stop(self) -> None:
        """End what runs. Idempotent."""
        if self._fleet is not None:
            self._fleet.stop()
        self._fleet = None


def gpus_of_servers(servers: int, each: int, *, learner: int, shared: bool) -> list[tuple[str, ...]]:
    """Which GPUs each of `servers` servers gets, `each` of them: those after the learner's, or from the first on if `shared`.

    Nothing where there is no GPU and a server needs no more than one. Raises ConfigError where there are too few.
    """
    if not torch.cuda.is_available() and each == 1:
        return [()] * servers
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    first = 0 if shared else learner
    needed = max(first + servers * each, learner)
    if needed > len(visible):
        raise ConfigError(
            f"{servers} server(s) of {each} GPU(s) (rollout.servers, rollout.tensor_parallel)"
            + (f" {'on those of' if shared else 'beside'} {learner} of the learner (learner.ranks)" if learner else "")
            + f" need {needed} GPUs, but {len(visible)} are there: lower one of them."
        )
    return [tuple(visible[first + number * each :][:each]) for number in range(servers)]
