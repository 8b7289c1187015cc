"""The reward model beside the policy: what it rewards and learns, whatever the micro-batches, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oar.common.errors import ConfigError
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from oar.learner.reward_model import RewardModel
from oar.method.forward.logprobs import score_completions
from oar.method.importance import ImplicitReward
from tests.learner.on_ranks import config, learner_of, start_model
from tests.models import random_batch, tiny_model

CORRECT = torch.tensor([True, False, False, True, True, False])
HOW = ImplicitReward(relative_lr=100.0)


def made(micro_batch_tokens: int) -> RewardModel:
    cfg = replace(config().learner, micro_batch_tokens=micro_batch_tokens)
    return RewardModel(HOW, cfg, tiny_model(0), tiny_model(0))


def test_it_learns_to_tell_right_completions_whatever_runs_at_once() -> None:
    batch = random_batch(1, rows=6)
    one, parts = made(4096), made(30)
    assert (one.rewards(batch) == 0).all()  # a copy of the starting model
    losses = []
    for _ in range(8):
        learned = one.learn(batch, CORRECT)
        assert parts.learn(batch, CORRECT) == pytest.approx(learned, abs=1e-4)
        losses.append(learned["reward_model/loss"])
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)
    assert losses[-1] < 0.5
    rewards = one.rewards(batch)
    torch.testing.assert_close(parts.rewards(batch), rewards, atol=5e-3, rtol=5e-3)
    assert torch.equal(rewards.sum(dim=1) > 0, CORRECT)
    assert (rewards[~batch.completion_mask] == 0).all()
    with torch.no_grad():
        own, start = (score_completions(model, batch, temperature=1.0).logprobs for model in (one.model, tiny_model(0)))
    torch.testing.assert_close(rewards, own - start)


def test_its_step_is_adamw_on_the_mean_cross_entropy() -> None:
    batch, model = random_batch(1, rows=6), tiny_model(0)
    found = made(4096)
    found.learn(batch, CORRECT)
    with torch.no_grad():
        start = score_completions(tiny_model(0), batch, temperature=1.0).logprobs
    own = score_completions(model, batch, temperature=1.0).logprobs
    said = torch.sigmoid(0.05 * (own - start).sum(dim=1))
    (-torch.where(CORRECT, said, 1 - said).log().mean()).backward()
    cfg = config().learner
    torch.optim.AdamW(model.parameters(), 100 * cfg.lr, (cfg.adam_beta1, cfg.adam_beta2), weight_decay=0.0).step()
    for one, other in zip(found.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_run_rewards_before_it_learns(tmp_path: Path) -> None:
    learner = learner_of(
        config("method=prime", "method.estimator.learned.relative_lr=100"), start_model(tmp_path), ALONE
    )
    first = learner.training_step()
    assert first.metrics["reward_model/loss"] == pytest.approx(0.6931, abs=1e-4)
    assert learner.reward_model is not None
    assert learner.reward_model.rewards(first.graded.batch).abs().max() > 0
    of_wrong, of_right = (first.credited.token_advantages[first.graded.correct == right] for right in (False, True))
    assert of_right.mean() > of_wrong.mean()


def test_where_it_cannot_be_one_sentence_says_so() -> None:
    for override in ("learner.ranks=2", "learner.compute_dtype=bfloat16"):
        with pytest.raises(ConfigError, match=r"learner\.ranks must be 1 and learner\.compute_dtype float32"):
            Method.built(config("method=prime", override))
