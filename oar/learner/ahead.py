"""The groups of one step after the other, and drawing those of the next while the learner is busy (`rollout.max_staleness`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from oar.common.clock import Clock
from oar.learner.groups import Drawn, GroupSampler
from oar.rollout.client.parallel import begun


class GroupStream:
    """Gives each step its groups.

    With `max_staleness` 0 the engine waits while the learner works: step k is drawn with the weights of step k. With 1, step
    k + 1 is drawn with the weights of step k while step k is scored, credited and updated: its completions are one version old
    when their turn comes, which `sampler_correction` in the loss accounts for. Weights are pushed between two draws, so all
    completions of a step are of one version, which the engine is asked for before and after. What comes out is still the same
    every time, but a run that goes on from a checkpoint draws its first step with the newest weights.
    """

    def __init__(self, sampler: GroupSampler | None) -> None:
        """Without a sampler, as on other ranks than the first, there are no groups at all."""
        self.sampler = sampler
        self.max_staleness = 0 if sampler is None else sampler.cfg.rollout.max_staleness
        self._next: Drawn | None = None

    def take(self, step: int, clock: Clock) -> Drawn:
        """The groups of step `step`: those drawn ahead, unless they are of weights that are too old, else drawn now."""
        if self.sampler is None:
            return Drawn(step, step, [], {})
        ahead, self._next = self._next, None
        dropped = ahead is not None and (ahead.step != step or step - ahead.version > self.max_staleness)
        drawn = self.sampler.draw(step, step, clock) if ahead is None or dropped else ahead
        if self.max_staleness == 0:
            return drawn
        count = sum(len(group.rollouts) for group in ahead.groups) if ahead is not None and dropped else 0
        metrics = {"train/staleness": step - drawn.version, "train/dropped_completions": count}
        return replace(drawn, metrics=drawn.metrics | metrics)

    @contextmanager
    def drawing_next(self, step: int, clock: Clock) -> Iterator[None]:
        """While the block works on step `step`, the engine draws the next if there is one; afterwards no request is running.

        Where the block fails nobody waits for the engine, not even the end of the process.
        """
        if self.sampler is None or self.max_staleness == 0 or step + 1 == self.sampler.cfg.learner.steps:
            yield
            return
        following = begun(partial(self.sampler.draw, step + 1, step, Clock()))
        yield
        with clock("generation"):
            self._next = following()
