"""What the states that completions went through are worth: continuations of them, drawn by the engine and graded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, nan

from oar.common.clock import Clock
from oar.common.seeding import derive_seed
from oar.config import TrainConfig
from oar.config.credit import ContinuationsConfig
from oar.config.evaluation import Sampling
from oar.learner.collect import GradedGroup, grade_groups
from oar.rollout.client.vllm import Engine
from oar.rollout.types import Rollout
from oar.tasks.reward_terms import RewardTerms
from oar.tasks.task import Task

State = tuple[int, tuple[int, ...], tuple[int, ...]]  # the group, the prompt, and the completion's tokens up to a cut


@dataclass(frozen=True, slots=True)
class Continuations:
    """Draws `samples` continuations of each state at which a completion is cut, and takes their mean reward as its value.

    A continuation may use the tokens that the completion had left; one that is cut there is graded as it is. Completions of a
    group that begin alike share a state, and so its continuations: the whole group shares that of the prompt.
    """

    cfg: TrainConfig
    how: ContinuationsConfig
    task: Task
    client: Engine
    reward: RewardTerms

    def valued(
        self, groups: Sequence[GradedGroup], step: int, version: int, clock: Clock
    ) -> tuple[list[GradedGroup], dict[str, float]]:
        """The groups with the values of their states; and how many states were continued, by how many tokens in all."""
        cuts = [[self.cuts(rollout) for rollout in group.rollouts] for group in groups]
        wanted: dict[State, None] = {}  # a set that keeps its order
        for place, (group, of_group) in enumerate(zip(groups, cuts, strict=True)):
            for rollout, own in zip(group.rollouts, of_group, strict=True):
                wanted |= dict.fromkeys(
                    (place, rollout.prompt_ids, rollout.completion_ids[:at]) for at in own[: self.how.most]
                )
        states, seed = list(wanted), self.cfg.seed
        with clock("continuations"):
            drawn = self.draw(states, derive_seed(seed, "continuations", step), version)
        with clock("grading"):
            problems = [groups[place].problem for place, *_ in states]
            graded = grade_groups(
                problems, drawn, self.task, self.reward, seed=derive_seed(seed, "continued reward", step)
            )
        worth = {
            state: sum(one.total for one in found.earned) / len(found.earned)
            for state, found in zip(states, graded, strict=True)
        }
        valued = []
        for place, (group, of_group) in enumerate(zip(groups, cuts, strict=True)):
            values = [[nan] * len(rollout.completion_ids) for rollout in group.rollouts]
            for row, (rollout, own) in enumerate(zip(group.rollouts, of_group, strict=True)):
                for at in own:  # beyond `most` a state is worth what the completion itself earned
                    state = place, rollout.prompt_ids, rollout.completion_ids[:at]
                    values[row][at] = worth.get(state, group.earned[row].total)
            valued.append(replace(group, values=values))
        tokens = sum(
            len(rollout.completion_ids) - len(taken)
            for (*_, taken), several in zip(states, drawn, strict=True)
            for rollout in several
        )
        return valued, {"train/continued_states": len(states), "train/continuation_tokens": tokens}

    def cuts(self, rollout: Rollout) -> list[int]:
        """Positions at which its segments begin, from 0 on: every `every`-th step, or token that was not sure."""
        if self.how.cut == "steps":
            found = self.task.step_starts(rollout.completion_ids)
        else:
            assert self.how.below is not None  # checked with the configuration
            found = [at for at, logprob in enumerate(rollout.sampler_logprobs) if exp(logprob) < self.how.below]
        return [0, *(at for at in found[self.how.every - 1 :: self.how.every] if at > 0)]

    def draw(self, states: Sequence[State], seed: int, version: int) -> list[list[Rollout]]:
        """Whole completions of each state's problem that begin as the state does."""
        rollout = self.cfg.rollout
        continued = self.client.generate(
            [[*prompt, *taken] for _, prompt, taken in states],
            [
                self.task.ending(Sampling(self.how.samples, rollout.temperature, rollout.max_new_tokens - len(taken)))
                for *_, taken in states
            ],
            seed=seed,
            expected_version=version,
        )
        begun = [Rollout(prompt, taken, (0.0,) * len(taken), version, "length") for _, prompt, taken in states]
        return [[one.behind(state) for one in several] for state, several in zip(begun, continued, strict=True)]
