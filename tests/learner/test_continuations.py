"""Continuations of the states that completions went through: which, with how many tokens left, worth what."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from oar.common.clock import Clock
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.learner.collect import collate_groups
from oar.learner.credit import Method
from oar.learner.rollouts import GroupSampler
from oar.rollout.types import Rollout
from oar.tasks.task import Task
from oar.tasks.template import load_template
from tests.byte_level import byte_level_tokenizer
from tests.config.test_config import composed
from tests.learner.test_rollouts import TASK, AnswerIsOne

SETTINGS = ("learner.batch_size=4", "learner.num_generations=2", "rollout.max_new_tokens=40")
TEXTS = ("We start with 5 apples . 5 - 4 = 1 . #### 1", "We start with 5 apples . 5 - 2 = 3 . #### 3")


def ids(text: str) -> tuple[int, ...]:
    return tuple(TASK.tokenizer.encode(text, add_special_tokens=False))


@dataclass
class TellingEngine:
    """Every group says TEXTS. Continuations answer 1 behind `- 4`, every second one 1 behind the prompt alone, and else 2."""

    asked: list[tuple[tuple[int, ...], int, int]] = field(default_factory=list)
    has_told: bool = False

    def generate(self, prompts, sampling, *, seed, expected_version):
        samplings = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        if not self.has_told:
            self.has_told = True
            return [
                [
                    Rollout(tuple(prompt), ids(text), self.sure(text), expected_version, "stop")
                    for text in TEXTS[: one.n]
                ]
                for prompt, one in zip(prompts, samplings, strict=True)
            ]
        groups = []
        for prompt, one in zip(prompts, samplings, strict=True):
            self.asked.append((tuple(prompt), one.n, one.max_new_tokens))
            before = TASK.decode(prompt)
            right = "- 4" in before
            undecided = "We start" not in before
            texts = ["#### 1" if right or (undecided and at % 2) else "#### 2" for at in range(one.n)]
            groups.append([Rollout(tuple(prompt), ids(text), (-0.5,) * 2, expected_version, "stop") for text in texts])
        return groups

    @staticmethod
    def sure(text: str) -> tuple[float, ...]:
        """Digits were drawn with probability 1/2, all else for sure."""
        return tuple(math.log(0.5) if TASK.decode([token]).isdigit() else -1e-3 for token in ids(text))


def drawn(*overrides: str):
    cfg, engine = validated(composed("method=vineppo", *SETTINGS, *overrides), TrainConfig), TellingEngine()
    return GroupSampler(cfg, TASK, engine, AnswerIsOne()).draw(3, 7, Clock()), engine


def states(found, row: int) -> dict[int, float]:
    batch = collate_groups(found.groups, TASK, torch.device("cpu"))
    assert batch.values is not None
    assert batch.values.shape == batch.batch.completion_mask.shape
    assert batch.values[~batch.batch.completion_mask].isnan().all()
    own = batch.values[row]
    return {at: float(own[at]) for at in (~own.isnan()).nonzero()[:, 0].tolist()}


def test_steps_are_sentences_and_their_states_worth_what_continuations_earn():
    found, engine = drawn("method.continuations.samples=4")
    second = len(ids("We start with 5 apples ."))
    third = second + len(ids("5 - 4 = 1 ."))
    assert states(found, 0) == states(found, 2) == {0: 0.5, second: 0.0, third: 1.0}
    assert states(found, 1) == {0: 0.5, second: 0.0, third: 0.0}
    # Of a group's two completions the prompt and the first sentence are one state each: four for each of two groups.
    assert found.metrics["train/continued_states"] == len(engine.asked) == 8
    assert found.metrics["train/continuation_tokens"] == 8 * 4 * 2
    questions = {group.rollouts[0].prompt_ids for group in found.groups}
    for prompt, n, left in engine.asked:
        (question,) = {one for one in questions if prompt[: len(one)] == one}
        assert (n, left) == (4, 40 - (len(prompt) - len(question)))


def test_later_states_are_worth_the_completions_own_reward():
    found, engine = drawn("method.continuations.samples=4", "method.continuations.most=1")
    places = sorted(states(found, 0))
    assert states(found, 0) == dict(zip(places, [0.5, 1.0, 1.0], strict=True))
    assert states(found, 1) == dict(zip(places, [0.5, 0.0, 0.0], strict=True))
    assert len(engine.asked) == 2


def test_states_of_generic_completions_stand_behind_their_own_prompt():
    found, engine = drawn("method.continuations.samples=4", "method.generic={members: 1, identity: 0.02}")
    # Each group says its first text twice, under two prompts: no state is shared.
    assert len(engine.asked) == 2 * 2 * 3
    for group in found.groups:
        own, generic = (rollout.prompt_ids for rollout in group.rollouts)
        assert own != generic == tuple(TASK.encode_generic(group.problem))
        begun = [prompt for prompt, *_ in engine.asked]
        text = ids(TEXTS[0])
        places = sorted(states(found, 0))
        assert all((*prompt, *text[:at]) in begun for prompt in (own, generic) for at in places)


def test_segments_of_so_many_uncertain_tokens():
    found, _ = drawn("method=spo", "method.continuations.samples=2", "method.continuations.every=2")
    uncertain = [at for at, token in enumerate(ids(TEXTS[0])) if TASK.decode([token]).isdigit()]
    assert sorted(states(found, 0)) == [0, *uncertain[1::2]]


def test_grpo_asks_for_nothing_more():
    found, engine = drawn("method=grpo")
    assert not engine.asked
    assert collate_groups(found.groups, TASK, torch.device("cpu")).values is None
    assert "train/continuation_tokens" not in found.metrics


def test_steps_are_sentences_and_with_a_template_lines():
    assert TASK.step_starts(ids("We start . We have 1 . #### 1")) == [3, 7]
    assert TASK.step_starts(ids("#### 1 .")) == []
    tokenizer = byte_level_tokenizer()
    task = Task.with_template(tokenizer, load_template("gsm8k_hash"))
    lines = ["She has 5. Then 3.\n", "So 5 - 3 = 2.\n\n", "#### 2\n"]
    whole = tokenizer.encode("".join(lines))
    found = [0, *task.step_starts(whole), len(whole)]
    assert [tokenizer.decode(whole[at:end]) for at, end in pairwise(found)] == lines


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["method=vineppo", "method.continuations=null"], "method.continuations must say what is drawn for vineppo"),
        (["method=spo", "learner.overlong=soft_penalty"], "learner.overlong must be keep or mask"),
        (["method=grpo", "method.control=shuffled"], "method.control must be none with grpo"),
        (["method=fipo", "method.control=position"], "method.control must be none with fipo"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_at_the_start(overrides, says):
    with pytest.raises(ConfigError, match=says):
        Method.built(validated(composed(*overrides), TrainConfig))


@pytest.mark.parametrize(
    "change",
    ["samples=0", "every=0", "most=0", "cut=words", "below=0.5", "cut=low_probability"],
)
def test_keys_that_cannot_be_are_refused(change):
    with pytest.raises(ConfigError, match=r"method\.continuations"):
        validated(composed("method=vineppo", f"method.continuations.{change}"), TrainConfig)
