"""Trees of completions: what the engine is asked for, and what becomes of parts that ended."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from oar.common.clock import Clock
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.learner.collect import collate_groups
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from oar.learner.rollouts import GroupSampler
from oar.method.importance import TreeAdvantages
from oar.rollout.types import Rollout
from tests.config.test_config import composed
from tests.learner.on_ranks import config, learner_of, start_model
from tests.learner.test_rollouts import TASK, AnswerIsOne

TREE = TreeAdvantages((2, 2), segment=3)
SETTINGS = ("method=spo_tree", "method.estimator.branching=[2,2]", "method.estimator.segment=3", "learner.batch_size=8")
FIRST = ("We start with", "#### 2")  # the second one has ended
LAST = (("1 . #### 1", "3 . #### 3"), ("5 . #### 1", "7"))


def ids(text: str) -> tuple[int, ...]:
    return tuple(TASK.tokenizer.encode(text, add_special_tokens=False))


@dataclass
class GrowingEngine:
    """Every prompt begins as FIRST; in the second tree both parts are the first one, so that nothing ends early."""

    asked: list[tuple[tuple[int, ...], int, int, int]] = field(default_factory=list)

    def generate(self, prompts, sampling, *, seed, expected_version):
        self.asked += [(tuple(prompt), sampling.n, sampling.max_new_tokens, seed) for prompt in prompts]
        if sampling.max_new_tokens == TREE.segment:
            texts = [FIRST, (FIRST[0], FIRST[0])]
        else:
            texts = [LAST[number % 2] for number in range(len(prompts))]
        return [
            [self.rollout(prompt, text, expected_version) for text in own]
            for prompt, own in zip(prompts, texts, strict=True)
        ]

    @staticmethod
    def rollout(prompt, text, version):
        said = ids(text)
        logprobs = tuple(-float(token) for token in said)
        return Rollout(tuple(prompt), said, logprobs, version, "stop" if "####" in text else "length")


def test_parts_are_continued_until_they_end():
    cfg = validated(composed(*SETTINGS, "learner.num_generations=4", "rollout.max_new_tokens=40"), TrainConfig)
    engine = GrowingEngine()
    found = GroupSampler(cfg, TASK, engine, AnswerIsOne(), tree=TREE).draw(3, 7, Clock())
    prompts = [tuple(TASK.encode_prompt(problem)) for problem in AnswerIsOne().problems(1, 3, 2)]
    begun = [(*prompt, *ids(FIRST[0])) for prompt in (prompts[0], prompts[1], prompts[1])]
    assert [asked[:3] for asked in engine.asked] == [(one, 2, 3) for one in prompts] + [(one, 2, 37) for one in begun]
    assert len({seed for *_, seed in engine.asked}) == 2  # of the levels; the client makes one of each prompt's place
    first, second = ([TASK.decode(rollout.completion_ids) for rollout in group.rollouts] for group in found.groups)
    assert first == [*(f"{FIRST[0]} {text}" for text in LAST[0]), "#### 2", "#### 2"]
    assert second == [f"{FIRST[0]} {text}" for part in (LAST[1], LAST[0]) for text in part]
    for prompt, group in zip(prompts, found.groups, strict=True):
        for rollout in group.rollouts:
            assert rollout.prompt_ids == prompt
            assert rollout.sampler_logprobs == tuple(-float(token) for token in rollout.completion_ids)
            assert rollout.weight_version == 7
    assert [group.rollouts[1].finish_reason for group in found.groups] == ["stop", "length"]
    batch = collate_groups(found.groups, TASK, torch.device("cpu"))
    assert batch.rewards.tolist() == [1, 0, 0, 0, 1, 0, 1, 0]


def test_a_step_learns_from_edges_alone(tmp_path: Path) -> None:
    """Token advantages of a training step are those of the signal on its leaves, and no edge is learned twice."""
    choices = ("method=spo_tree", "method.estimator.branching=[2,2]", "method.estimator.segment=8")
    learner = learner_of(config(*choices, "learner.aggregation=token_mean"), start_model(tmp_path), ALONE)
    report = learner.training_step()
    batch, advantages = report.graded.batch, report.credited.token_advantages * report.graded.batch.completion_mask
    assert (batch.completion_lengths > 8).any()
    taught: dict[tuple[int, ...], int] = {}
    for row in range(24):
        for at in advantages[row].nonzero()[:, 0].tolist():
            before = (row // 4, row // 2 if at >= 8 else -1, *batch.completion_ids[row, : at + 1].tolist())
            taught[before] = taught.get(before, 0) + 1
    assert len(taught) > 20
    # The other node of a group, or the other leaf of a node, may say the same by chance; nobody else.
    assert max(taught.values()) <= 2
    assert report.metrics["train/grad_norm"] > 0.001


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["learner.num_generations=8"],
            r"learner\.num_generations must be 4, the leaves of a tree .*\[2, 2\], but is 8",
        ),
        (["rollout.max_new_tokens=3"], r"rollout\.max_new_tokens must be above 3"),
        (["learner.overlong=mask"], r"learner\.overlong must be keep or soft_penalty where a group is a tree"),
        (["method.generic={members: 1, identity: 0}"], r"method\.generic must be null where a group is a tree"),
    ],
)
def test_groups_that_are_no_tree_are_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        Method.built(validated(composed(*SETTINGS, "learner.num_generations=4", *overrides), TrainConfig))
