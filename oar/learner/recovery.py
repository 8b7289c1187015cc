"""What a run does when its engine is lost (rollout.restart): another one, the same weights, proof that it has them, and on.

The learner notices first, since it is the one that speaks to the engine: it writes the file ENGINE_LOST into the run's folder
and waits. The supervisor ends what is left of the engine, starts another one on the same port and takes the file away once that
is healthy. Only then does the learner go on, so nobody guesses which of two engines answers. What was lost is repeated whole:
every draw has a seed of its step and prompt, so the run goes on to the same bytes.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from oar.common.errors import EngineError, EngineLostError
from oar.common.files import write_text_atomic
from oar.config import RolloutConfig
from oar.learner.distributed import Ranks

ENGINE_LOST = "engine.lost"
POLL_S = 0.1
ENDING_S = 60.0  # what the supervisor gets to end the old engine, on top of rollout.startup_timeout_s

Result = TypeVar("Result")


class Steady(Protocol):
    """Runs work that needs the engine."""

    def __call__(self, work: Callable[[], Result]) -> Result:
        """What `work` returns."""


def once(work: Callable[[], Result]) -> Result:
    """Without a supervisor nothing is repeated: an engine that is lost ends the work."""
    return work()


class Recovery:
    """Does work that needs the engine, on an engine that provably holds the learner's weights; again where that is lost.

    `verify` brings the weights of the current step to the engine and proves that they are there; what it asks of the engine it
    does through the function it is given. It runs before the first work and after each loss. `steps_done` tells how far the
    run is. With several ranks all of them call this at the same points, and learn from the first, which alone speaks to
    the engine, what became of it.
    """

    def __init__(
        self,
        cfg: RolloutConfig,
        folder: Path,
        ranks: Ranks,
        steps_done: Callable[[], int],
        verify: Callable[[Steady], None],
    ) -> None:
        self._cfg, self._notice, self._ranks = cfg, folder / ENGINE_LOST, ranks
        self._steps_done, self._verify = steps_done, verify
        self._verified = False
        self._restarts, self._since, self._at_step = 0, 0, -1

    def __call__(self, work: Callable[[], Result]) -> Result:
        """What `work` returns; it may run several times.

        Raises EngineLostError where nothing is to be restarted (rollout.restart=false), or where rollout.max_restarts were
        not enough to finish a step.
        """
        while True:
            try:
                if not self._verified:
                    self._verify(self._attempt)
                    self._verified = True
                return self._attempt(work)
            except _AnotherEngineError:
                self._verified = False

    def _attempt(self, work: Callable[[], Result]) -> Result:
        if not self._cfg.restart:
            return work()
        lost = None
        try:
            result = work()
        except EngineLostError as error:
            lost = error
        if not self._ranks.agree(lost is not None):
            return result
        if lost is not None:
            self._await_another(lost)
        raise _AnotherEngineError

    def _await_another(self, lost: EngineLostError) -> None:
        step = self._steps_done()
        self._since = self._since + 1 if step == self._at_step else 1
        self._at_step = step
        if self._since > self._cfg.max_restarts:
            raise lost
        self._restarts += 1
        print(f"engine lost after step {step}: {lost} Restart {self._restarts} of this run ...", flush=True)
        began = time.monotonic()
        write_text_atomic(self._notice, f"{lost}\n")
        while self._notice.exists():
            if time.monotonic() - began > self._cfg.startup_timeout_s + ENDING_S:
                raise EngineError("the supervisor gave no other engine in the time of rollout.startup_timeout_s.")
            time.sleep(POLL_S)
        print(f"another engine after {time.monotonic() - began:.1f} s", flush=True)


class _AnotherEngineError(Exception):
    """The engine was lost, and another one is there or, on the other ranks, will be."""
