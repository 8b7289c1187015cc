"""Dynamic sampling: groups that teach nothing make way, in bounds, and everything follows from the step."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from oar.common.clock import Clock
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.learner.collect import collate_groups
from oar.learner.rollouts import GroupSampler
from oar.rollout.types import Rollout
from oar.tasks.data.sources import WordsSource
from oar.tasks.reward_terms import ANSWER, RewardTerms
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed

TASK = Task(build_tokenizer(), "####")
SETTINGS = ("learner.batch_size=12", "learner.num_generations=3", "learner.micro_batch_tokens=40")


@dataclass
class ScriptedEngine:
    """Answers the groups in the order in which they are asked for: how many of three completions say 1, the rest 2."""

    ones: list[int]
    asked: list[tuple[list[tuple[int, ...]], int, int]] = field(default_factory=list)

    def generate(self, prompts, sampling, *, seed, expected_version):
        self.asked.append(([tuple(prompt) for prompt in prompts], seed, expected_version))
        groups = []
        for prompt, one in zip(
            prompts, sampling if isinstance(sampling, list) else [sampling] * len(prompts), strict=True
        ):
            count = self.ones.pop(0)
            texts = ["#### 1"] * count + ["#### 2"] * (one.n - count)
            ids = [tuple(TASK.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
            groups.append([Rollout(tuple(prompt), one, (-0.5,) * len(one), expected_version, "stop") for one in ids])
        return groups


@dataclass(frozen=True)
class AnswerIsOne:
    """Word problems whose answer is 1, so that the script decides what is right."""

    stream: WordsSource = field(default_factory=lambda: WordsSource(["words1"]))

    def problems(self, seed, step, n):
        return [replace(problem, answer="1") for problem in self.stream.problems(seed, step, n)]

    def origin(self):
        return {}


def drawn(ones, max_refills, *overrides, step=5, reward=ANSWER):
    engine, cfg = (
        ScriptedEngine(list(ones)),
        validated(composed(*SETTINGS, f"learner.max_refills={max_refills}", *overrides), TrainConfig),
    )
    return GroupSampler(cfg, TASK, engine, AnswerIsOne(), reward).draw(step, 7, Clock()), engine


def correct(found):
    return [sum(verdict.correct for verdict in group.verdicts) for group in found.groups]


def test_without_refills_groups_stay_as_they_were_drawn():
    found, engine = drawn([0, 1, 3, 2], max_refills=0)
    assert correct(found) == [0, 1, 3, 2]
    assert found.metrics == {}
    assert len(engine.asked) == 1


def test_idle_groups_make_way_in_their_own_place():
    found, engine = drawn([0, 1, 3, 2, 0, 2, 1], max_refills=3)
    assert correct(found) == [1, 1, 2, 2]  # slot 0: 0, then 0, then 1; slot 2: 3, then 2
    assert [len(prompts) for prompts, _, _ in engine.asked] == [4, 2, 1]
    assert found.metrics == {"train/refilled_groups": 3, "train/drawn_reward_mean": pytest.approx(9 / 21)}
    assert {version for _, _, version in engine.asked} == {7}
    batch = collate_groups(found.groups, TASK, torch.device("cpu"))
    assert batch.rewards.view(4, 3).sum(dim=1).tolist() == [1, 1, 2, 2]
    assert [
        tuple(ids[:length].tolist())
        for ids, length in zip(batch.batch.input_ids, batch.batch.prompt_lengths, strict=True)
    ] == [group.rollouts[0].prompt_ids for group in found.groups for _ in range(3)]


def test_a_group_teaches_by_its_rewards_not_by_its_answers():
    def by_place(completions, **columns):
        return [0.25 * (row % 3) for row in range(len(completions))]

    found, engine = drawn([0, 3, 1, 2], max_refills=3, reward=RewardTerms({"place": by_place}, {"place": 1.0}))
    assert len(engine.asked) == 1  # all wrong and all right, yet no two earn the same
    assert found.metrics["train/drawn_reward_mean"] == 0.25
    assert collate_groups(found.groups, TASK, torch.device("cpu")).rewards.tolist() == [0.0, 0.25, 0.5] * 4

    def alike(completions, **columns):
        return [0.5] * len(completions)

    found, engine = drawn([1, 2] * 4, max_refills=1, reward=RewardTerms({"alike": alike}, {"alike": 1.0}))
    assert (len(engine.asked), found.metrics["train/refilled_groups"]) == (2, 4)


@pytest.mark.parametrize(("decoupled", "asked"), [(True, 1), (False, 2)])
def test_a_group_teaches_by_the_advantages_that_it_would_get(decoupled, asked):
    """The sums of two terms are all 1, but each term by itself tells the first completion from the others."""

    def first(completions, **columns):
        return [float(row % 3 == 0) for row in range(len(completions))]

    def others(completions, **columns):
        return [2.0 * (row % 3 != 0) for row in range(len(completions))]

    reward = RewardTerms({"first": first, "others": others}, {"first": 1.0, "others": 0.5})
    found, engine = drawn([1] * 8, 1, f"method.decoupled_rewards={decoupled}", reward=reward)
    assert {earned.total for group in found.groups for earned in group.earned} == {1.0}
    assert len(engine.asked) == asked


def test_generic_members_come_last_under_their_own_prompt():
    found, engine = drawn([1, 0, 2, 1, 1, 0, 0, 1], 0, "method.generic={members: 1, identity: 0.02}")
    ((prompts, _, _),) = engine.asked
    problems = AnswerIsOne().problems(1, 5, 4)
    assert prompts == [tuple(ids) for one in (TASK.encode_prompt, TASK.encode_generic) for ids in map(one, problems)]
    assert correct(found) == [2, 0, 2, 2]
    batch = collate_groups(found.groups, TASK, torch.device("cpu")).batch
    expected = [
        ids for problem in problems for ids in [TASK.encode_prompt(problem)] * 2 + [TASK.encode_generic(problem)]
    ]
    assert [
        ids[:length].tolist() for ids, length in zip(batch.input_ids, batch.prompt_lengths, strict=True)
    ] == expected
    # A group whose generic member alone is wrong teaches.
    _, engine = drawn([2, 2, 2, 2, 0, 0, 0, 0], 1, "method.generic={members: 1, identity: 0.02}")
    assert len(engine.asked) == 1


def test_at_the_bound_the_batch_keeps_its_size():
    found, engine = drawn([0, 0, 3, 1, 0, 3, 3, 0, 1, 0], max_refills=2)
    assert correct(found) == [0, 1, 0, 1]
    assert len(engine.asked) == 3
    assert found.metrics["train/refilled_groups"] == 6


def test_problems_and_seeds_follow_from_the_step_and_never_come_twice():
    prompts, seeds = [], []
    for step in range(3):
        _, engine = drawn([0] * 12, max_refills=2, step=step)
        _, again = drawn([0] * 12, max_refills=2, step=step)
        assert again.asked == engine.asked
        prompts += [prompt for asked, _, _ in engine.asked for prompt in asked]
        seeds += [seed for _, seed, _ in engine.asked]
    assert len(set(seeds)) == 9
    problems = AnswerIsOne().problems(1, 0, 36)
    assert prompts == [tuple(TASK.encode_prompt(problem)) for problem in problems]


def test_refills_by_random_rewards_are_refused():
    with pytest.raises(ConfigError, match=r"learner\.max_refills must be 0 where reward=random"):
        validated(composed("method=random_reward", "learner.max_refills=1"), TrainConfig)
