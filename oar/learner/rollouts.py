"""The groups of a training step: which problems, drawn with which seeds, drawn again where a group teaches nothing, or ahead."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from oar.common.clock import Clock
from oar.common.seeding import derive_seed
from oar.config import TrainConfig
from oar.config.evaluation import Sampling
from oar.learner.collect import GradedGroup, grade_groups
from oar.learner.compared import compared
from oar.learner.continuations import Continuations
from oar.learner.tree import grown
from oar.method.importance import TreeAdvantages
from oar.rollout.client.parallel import begun
from oar.rollout.client.vllm import Engine
from oar.rollout.types import Rollout
from oar.tasks.data.sources import ProblemSource
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import ANSWER, RewardTerms
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Drawn:
    """The groups of step `step`, drawn with weights `version`, and what is to be logged of how they came about.

    seconds: by stage, of a draw that the step did not wait for.
    """

    step: int
    version: int
    groups: list[GradedGroup]
    metrics: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """Asks the engine for the groups of a step. All that it asks follows from the run's seed and the step."""

    cfg: TrainConfig
    task: Task
    client: Engine
    source: ProblemSource
    reward: RewardTerms = ANSWER
    tree: TreeAdvantages | None = None  # the completions of a group are its leaves

    def draw(self, step: int, version: int, clock: Clock) -> Drawn:
        """The groups of step `step` (from 0), drawn with weights `version`.

        Dynamic sampling (DAPO, arXiv 2503.14476 §3.2): where no completion of a group has an advantage, as where all are right
        or all wrong, a group of another problem takes its place, in at most `learner.max_refills` rounds. At the bound the
        groups that are there stay: a batch always has its size, and a group without advantage counts in its normaliser, as in
        GRPO.

        Each step has a stretch of the problem stream of its own, one batch long for the first draw and for each refill,
        whether they are needed or not: so no problem comes twice in an epoch, and the step alone says which come. A refill
        takes as many as it needs.
        """
        learner = self.cfg.learner
        groups = self._round(step, 0, learner.batch_size // learner.num_generations, version, clock)
        drawn = list(groups)
        for refill in range(1, learner.max_refills + 1):
            idle = [slot for slot, group in enumerate(groups) if not self._teaches(group)]
            fresh = self._round(step, refill, len(idle), version, clock) if idle else []
            drawn += fresh
            for slot, group in zip(idle, fresh, strict=True):
                groups[slot] = group
        metrics = self._metrics(groups, drawn) if learner.max_refills else {}
        if self.cfg.method.continuations is not None:
            continuations = Continuations(self.cfg, self.cfg.method.continuations, self.task, self.client, self.reward)
            groups, told = continuations.valued(groups, step, version, clock)
            metrics |= told
        return Drawn(step, version, groups, metrics)

    def generate(self, problems: Sequence[Problem], *, seed: int, version: int) -> list[list[Rollout]]:
        """Completions of each problem: alone or the leaves of a tree; where there are generic ones, they come last."""
        rollout, count, generic = self.cfg.rollout, self.cfg.learner.num_generations, self.cfg.method.generic
        sampling = self.task.ending(Sampling(count, rollout.temperature, rollout.max_new_tokens))
        draw = partial(self.client.generate, seed=seed, expected_version=version)
        prompts = [self.task.encode_prompt(problem) for problem in problems]
        if self.tree is not None:
            return grown(self.client, prompts, sampling, self.tree, seed=seed, version=version)
        if generic is None:
            return draw(prompts, sampling)
        others = [self.task.encode_generic(problem) for problem in problems]
        counts = [count - generic.members] * len(prompts) + [generic.members] * len(others)
        drawn = draw([*prompts, *others], [replace(sampling, n=n) for n in counts])
        return [[*own, *more] for own, more in zip(drawn[: len(prompts)], drawn[len(prompts) :], strict=True)]

    def _teaches(self, group: GradedGroup) -> bool:
        """Whether some completion has an advantage by what it earns; as in DAPO, what its length costs does not count."""
        rewards = torch.tensor([earned.total for earned in group.earned])
        streams = torch.tensor([list(earned.terms.values()) for earned in group.earned])
        return bool(compared(self.cfg, list(self.reward.weights.values()), rewards, streams).any())

    def _round(self, step: int, refill: int, count: int, version: int, clock: Clock) -> list[GradedGroup]:
        seed, learner = self.cfg.seed, self.cfg.learner
        stretch = step * (1 + learner.max_refills) + refill
        drawn_for = (step,) if refill == 0 else (step, refill)
        with clock("generation"):
            problems = self.source.problems(seed, stretch, learner.batch_size // learner.num_generations)[:count]
            groups = self.generate(problems, seed=derive_seed(seed, "sampling", *drawn_for), version=version)
        with clock("grading"):
            return grade_groups(problems, groups, self.task, self.reward, seed=derive_seed(seed, "reward", *drawn_for))

    @staticmethod
    def _metrics(groups: Sequence[GradedGroup], drawn: Sequence[GradedGroup]) -> dict[str, float]:
        # The batch is chosen to earn different rewards: how well the policy does, only all that was drawn can say.
        earned = [one.total for group in drawn for one in group.earned]
        return {"train/refilled_groups": len(drawn) - len(groups), "train/drawn_reward_mean": sum(earned) / len(earned)}


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
        clock.add(drawn.seconds)
        if self.max_staleness == 0:
            return drawn
        count = sum(len(group.rollouts) for group in ahead.groups) if ahead is not None and dropped else 0
        metrics = {"train/staleness": step - drawn.version, "train/dropped_completions": count}
        return replace(drawn, metrics=drawn.metrics | metrics)

    @property
    def ahead_seconds(self) -> float:
        """What the groups of the next step have taken so far that were drawn beside something else."""
        return 0.0 if self._next is None else sum(self._next.seconds.values())

    @contextmanager
    def drawing(self, step: int) -> Iterator[None]:
        """While the block asks the engine for something else, the groups of step `step` are drawn, with the weights of that step.

        An engine takes little longer for both than for the longer of them. They are there and graded when the block is left, so
        that nobody's reward function is called twice at a time. Where the block fails nobody waits for them.
        """
        if self.sampler is None or self._next is not None or step == self.sampler.cfg.learner.steps:
            yield
            return
        clock = Clock()
        coming = begun(partial(self.sampler.draw, step, step, clock))
        yield
        self._next = replace(coming(), seconds=clock.stages())

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
