"""The reward head beside the policy: what it says and learns, whatever the micro-batches, from step to step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oar.learner.distributed import ALONE
from oar.learner.reward_head import LearnedGains
from oar.method.advantages import centred
from oar.method.importance import RewardHead
from tests.learner.on_ranks import config, learner_of, start_model
from tests.models import random_batch, tiny_model

REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25, 0.0, 0.75])
TEMPERATURE = 0.7


def made(micro_batch_tokens: int = 4096, checkpoint: Path | None = None, **how: int) -> LearnedGains:
    cfg = replace(config().learner, micro_batch_tokens=micro_batch_tokens, num_generations=4)
    return LearnedGains(RewardHead(**({"codes": 5} | how)), cfg, TEMPERATURE, tiny_model(1), checkpoint)


def test_it_knows_nothing_of_the_step_at_hand_whatever_runs_at_once() -> None:
    model, batch = tiny_model(0), random_batch(1, rows=8)
    one, parts = made(), made(30)
    for head in (one, parts):
        assert not head.gains(model, batch, REWARDS).any()
        assert head.learn() == {"reward_head/explained": 0, "reward_head/trust": 0}
        assert not head.gains(model, batch, 100 * REWARDS).any()  # no trust yet
        explained = head.learn()["reward_head/explained"]
        assert explained == 0
    # It has seen these completions, so it foretold them; other rewards now, which it has not learned.
    gains = one.gains(model, batch, -REWARDS)
    torch.testing.assert_close(parts.gains(model, batch, REWARDS), gains, atol=1e-4, rtol=1e-3)
    assert gains.any()
    assert not gains[~batch.completion_mask].any()


def test_gains_are_by_hand_and_0_on_average_under_the_policy() -> None:
    model, batch, head = tiny_model(0), random_batch(1, rows=8), made()
    for _ in range(2):
        head.gains(model, batch, REWARDS)
        head.learn()
    slope = head.how.slope(*(head.memory[name] for name in ("changes", "rewards", "groups", "moments")))
    trust = float(head.how.trust(head.memory["foretold"]))
    assert 0 < trust <= 1
    found, reference = head.gains(model, batch, REWARDS), head.reference
    for row, (prompt, length) in enumerate(
        zip(batch.prompt_lengths.tolist(), batch.completion_lengths.tolist(), strict=True)
    ):
        ids = batch.input_ids[row, : prompt + length]
        with torch.no_grad():
            policy = (model(ids[None]).logits[0, prompt - 1 : -1] / TEMPERATURE).softmax(dim=-1)
            states = reference.model(ids[None]).last_hidden_state[0, prompt - 1 : -1]
        every = head.codes @ slope @ torch.cat([torch.ones(length, 1), states], dim=1).T  # (V, T)
        every = trust * (every.T - (policy * every.T).sum(dim=1, keepdim=True))
        torch.testing.assert_close((policy * every).sum(dim=1), torch.zeros(length), atol=1e-5, rtol=0)
        expected = every[torch.arange(length), ids[prompt:]]
        torch.testing.assert_close(found[row, :length], expected, atol=1e-4, rtol=1e-3)


def test_what_it_foretells_is_measured_before_it_learns() -> None:
    model, head = tiny_model(0), made()
    for _ in range(2):
        head.gains(model, random_batch(1, rows=8), REWARDS)
        head.learn()
    trust, other = float(head.how.trust(head.memory["foretold"])), REWARDS.flip(0)  # it has learned nothing of these
    before = head.memory["foretold"]
    gains, groups = head.gains(model, random_batch(1, rows=8), other), torch.arange(8) // 4
    metrics, real = head.learn(), centred(other, groups)
    missed = (real - centred(gains.sum(dim=1), groups)).square().sum()
    explained = float(1 - missed / real.square().sum())
    told = centred(gains.sum(dim=1), groups) / trust
    torch.testing.assert_close(head.memory["foretold"], 0.9 * before + torch.stack([told @ real, told @ told]))
    assert trust > 0
    assert abs(explained) > 0.1
    assert metrics == {
        "reward_head/trust": pytest.approx(trust),
        "reward_head/explained": pytest.approx(explained, abs=1e-4),
    }


def test_it_forgets_the_oldest_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    model, batches, head = tiny_model(0), [random_batch(1, rows=8)] * 3, made(memory=12)
    for batch in batches:
        head.gains(model, batch, REWARDS)
        head.learn()
    assert len(head.memory["rewards"]) == 12
    assert head.memory["moments"][0, 0] == 3 * batches[0].completion_mask.sum()  # of states it forgets none
    assert head.memory["groups"].tolist() == [3] * 4 + [4] * 4 + [5] * 4
    torch.testing.assert_close(head.memory["rewards"], torch.cat([REWARDS[4:], REWARDS]))
    head.save(tmp_path)
    again = made(checkpoint=tmp_path, memory=12)
    gains = again.gains(model, batches[1], REWARDS)
    assert gains.any()
    assert torch.equal(gains, head.gains(model, batches[1], REWARDS))


def test_a_run_learns_gains_and_keeps_them(tmp_path: Path) -> None:
    learner = learner_of(config("method=reward_head"), start_model(tmp_path), ALONE)
    reports = [learner.training_step() for _ in range(3)]
    assert learner.beside.reward_head is not None
    assert len(learner.beside.reward_head.memory["rewards"]) == 3 * learner.cfg.learner.batch_size
    assert reports[0].metrics["reward_head/explained"] == 0
    first, last = (report.credited.token_advantages for report in (reports[0], reports[-1]))
    assert all(len(set(row[row != 0].tolist())) <= 1 for row in first)  # the same for all tokens of a completion
    assert reports[-1].metrics["reward_head/trust"] > 0
    assert any(len(set(row[row != 0].tolist())) > 1 for row in last)
