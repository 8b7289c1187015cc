"""The clipped objective: by hand, against autograd facts, and over aggregations."""

import math

import pytest
import torch

from oar.errors import DataError
from oar.losses import loss_scale, policy_loss, sampler_correction

MASK = torch.tensor([[True, True, True, True], [True, False, False, False]])
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}


def test_aggregations_by_hand():
    torch.testing.assert_close(loss_scale(MASK, "sequence_mean", 10), torch.tensor([[1 / 8] * 4, [1 / 2, 0, 0, 0]]))
    torch.testing.assert_close(loss_scale(MASK, "token_mean", 10), MASK / 5)
    torch.testing.assert_close(loss_scale(MASK, "constant", 10), MASK / 20)
    with pytest.raises(DataError, match="'sum'"):
        loss_scale(MASK, "sum", 10)


def test_clipping_by_hand():
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5]])
    advantages = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    scale = torch.full((1, 4), 0.25)
    loss, sums = policy_loss(ratio.log(), torch.zeros(1, 4), advantages, scale, **CLIP)
    # min(rA, clip(r) A): 1.28*2, 1.5*-2, 0.5*2, 0.8*-2
    expected = -(1.28 * 2 - 1.5 * 2 + 0.5 * 2 - 0.8 * 2) / 4
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    assert float(sums["clipped"]) == 2
    kl = sum(r - 1 - math.log(r) for r in (1.5, 1.5, 0.5, 0.5))
    assert float(sums["approx_kl"]) == pytest.approx(kl, rel=1e-5)


def test_on_policy_gradient_is_the_policy_gradient():
    logprobs = torch.randn(2, 4, requires_grad=True)
    advantages, scale = torch.randn(2, 4), loss_scale(MASK, "sequence_mean", 4)
    loss, _ = policy_loss(logprobs, logprobs.detach(), advantages, scale, **CLIP)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, -advantages * scale)


def test_tokens_outside_the_mask_cannot_matter():
    old, advantages, scale = torch.randn(2, 4), torch.randn(2, 4), loss_scale(MASK, "token_mean", 4)
    logprobs = old + 0.1
    spoiled = torch.where(MASK, logprobs, torch.tensor(1e4)).requires_grad_()
    loss, sums = policy_loss(spoiled, old, advantages, scale, **CLIP)
    clean_loss, clean_sums = policy_loss(logprobs, old, advantages, scale, **CLIP)
    assert float(loss) == float(clean_loss)
    assert float(sums["approx_kl"]) == float(clean_sums["approx_kl"])
    (gradient,) = torch.autograd.grad(loss, spoiled)
    assert torch.equal(gradient[~MASK], torch.zeros(3))


def test_k3_kl_and_sampler_correction():
    logprobs, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    zero, scale = torch.zeros(1, 2), torch.ones(1, 2)
    loss, _ = policy_loss(logprobs, logprobs, zero, scale, **CLIP, ref_logprobs=ref, kl_coef=0.5)
    expected = 0.5 * sum(math.exp(d) - d - 1 for d in (-0.5, 1.0))
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(sampler_correction(logprobs, ref, 2.0), torch.tensor([[math.exp(0.5), math.exp(-1.0)]]))
    assert float(sampler_correction(torch.zeros(1), torch.tensor([-3.0]), 2.0)) == 2.0
