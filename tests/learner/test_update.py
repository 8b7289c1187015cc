"""The update: micro-batches of any size give one gradient, and it is the gradient of the textbook objective."""

from dataclasses import replace

import pytest
import torch

from oar.config import TrainConfig, validated
from oar.learner.update import UpdateBatch, accumulate_gradient, learning_rate
from oar.scoring import completion_logprobs
from tests.models import random_batch, tiny_model
from tests.test_config import composed

CFG = validated(composed(), TrainConfig).learner


def update_batch(model, rows=8, *, off_policy=0.0, reference=False):
    batch = random_batch(0, rows=rows)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        old, _ = completion_logprobs(model, batch, temperature=1.0)
    shift = off_policy * torch.randn(old.shape, generator=generator)
    advantages = torch.randn(old.shape, generator=generator)
    advantages[2] = 0.0  # a completion without advantage
    return UpdateBatch(batch, old + shift, advantages, old - 0.1 if reference else None)


def gradient(model, data, cfg):
    model.zero_grad(set_to_none=True)
    report = accumulate_gradient(model, data, cfg, temperature=1.0, max_completion_length=16)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), report


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("reference", [False, True])
def test_micro_batches_give_the_same_gradient(aggregation, reference):
    model = tiny_model()
    data = update_batch(model, off_policy=0.3, reference=reference)
    cfg = replace(CFG, aggregation=aggregation, kl_coef=0.1 if reference else 0.0)
    whole, report = gradient(model, data, replace(cfg, micro_batch_size=8))
    for size in (4, 2, 3):
        parts, part_report = gradient(model, data, replace(cfg, micro_batch_size=size))
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)
        assert part_report == pytest.approx(report, abs=1e-6)
    assert float(whole.norm()) > 0.01


def test_gradient_is_that_of_the_textbook_objective():
    """On policy, the gradient is that of mean over completions of mean over tokens of -A logprob, all logits at once."""
    model = tiny_model()
    data = update_batch(model, rows=4)
    found, report = gradient(model, data, replace(CFG, micro_batch_size=2))
    model.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for row in range(4):
        prompt, length = int(data.batch.prompt_lengths[row]), int(data.batch.completion_lengths[row])
        ids = data.batch.input_ids[row, : prompt + length]
        logprobs = model(ids[None]).logits[0, prompt - 1 : -1].log_softmax(-1)[range(length), ids[prompt:]]
        loss = loss - (data.token_advantages[row, :length] * logprobs).mean() / 4
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert report["train/clip_fraction"] == 0.0
    assert report["train/approx_kl"] == pytest.approx(0.0, abs=1e-9)


def test_a_batch_without_any_advantage_has_no_gradient_and_does_not_fail():
    model = tiny_model()
    data = update_batch(model)
    data = replace(data, token_advantages=torch.zeros_like(data.token_advantages))
    report = accumulate_gradient(model, data, CFG, temperature=1.0, max_completion_length=16)
    assert report == {"train/loss": 0.0, "train/clip_fraction": 0.0, "train/approx_kl": 0.0}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) == 0.0


def test_warm_up():
    cfg = replace(CFG, lr=1.0, warmup_steps=4)
    assert [learning_rate(cfg, update) for update in (0, 1, 3, 4, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert learning_rate(replace(cfg, warmup_steps=0), 0) == 1.0
