"""The clipped objective: by hand, against autograd facts, and over aggregations."""

import math

import pytest
import torch

from oar.common.errors import DataError
from oar.method.losses import loss_scale, policy_log_ratio, policy_loss, sampler_correction

MASK = torch.tensor([[True, True, True, True], [True, False, False, False]])
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}


def test_aggregations_by_hand():
    torch.testing.assert_close(loss_scale(MASK, "sequence_mean", 10), torch.tensor([[1 / 8] * 4, [1 / 2, 0, 0, 0]]))
    torch.testing.assert_close(loss_scale(MASK, "token_mean", 10), MASK / 5)
    torch.testing.assert_close(loss_scale(MASK, "constant", 10), MASK / 20)
    with pytest.raises(DataError, match="'sum'"):
        loss_scale(MASK, "sum", 10)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
def test_a_completion_outside_the_mask_is_in_no_normaliser(aggregation):
    """The overlong mask: what is left is scaled as if the completion had never been drawn."""
    left_out = torch.cat([MASK[:1], torch.zeros(1, 4, dtype=torch.bool), MASK[1:]])
    scale = loss_scale(left_out, aggregation, 10)
    assert torch.equal(scale[[0, 2]], loss_scale(MASK, aggregation, 10))
    assert scale[1].tolist() == [0, 0, 0, 0]
    assert torch.equal(loss_scale(torch.zeros_like(MASK), aggregation, 10), torch.zeros(2, 4))


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


@pytest.mark.parametrize("value", [1e4, -1e4])  # of which a ratio overflows to the policy or to the reference
def test_tokens_outside_the_mask_cannot_matter(value):
    old, advantages, scale = torch.randn(2, 4), torch.randn(2, 4), loss_scale(MASK, "token_mean", 4)
    logprobs, options = old + 0.1, CLIP | {"ref_logprobs": old, "kl_coef": 0.5}
    spoiled = torch.where(MASK, logprobs, torch.tensor(value)).requires_grad_()
    loss, sums = policy_loss(spoiled, old, advantages, scale, **options)
    clean_loss, clean_sums = policy_loss(logprobs, old, advantages, scale, **options)
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


def test_a_sampler_correction_is_of_the_policys_term_alone():
    logprobs, ref, correction = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]), torch.tensor([[0.5, 2.0]])
    beside = {"ref_logprobs": ref, "kl_coef": 0.5, "auxiliary": torch.tensor([[3.0, -1.0]])}
    advantages, scale = torch.tensor([[1.0, 4.0]]), torch.ones(1, 2)
    loss, _ = policy_loss(logprobs, logprobs, advantages, scale, **CLIP, correction=correction, **beside)
    kl = 0.5 * sum(math.exp(d) - d - 1 for d in (-0.5, 1.0))
    assert float(loss) == pytest.approx(-(0.5 * 1 + 2 * 4) + kl + 2, rel=1e-6)


def test_sequence_ratio_by_hand():
    """s = sqrt(1.5 x 0.96) = 1.2 for both tokens of the first completion; the second has one token, of ratio 0.5."""
    mask = torch.tensor([[True, True, False], [True, False, False]])
    log_ratio = torch.tensor([[1.5, 0.96, 1.0], [0.5, 1.0, 1.0]]).log()
    ratio = policy_log_ratio(log_ratio, mask, "sequence").exp()
    torch.testing.assert_close(ratio, torch.tensor([[1.2, 1.2, 1.0], [0.5, 1.0, 1.0]]))
    assert torch.equal(policy_log_ratio(log_ratio, mask, "token"), log_ratio)
    with pytest.raises(DataError, match="'group'"):
        policy_log_ratio(log_ratio, mask, "group")
    # A completion is clipped as a whole: 1.2 is beyond 1.1, where its own second token, 0.96, is not.
    advantages, scale = torch.tensor([[1.5, 0.5, 0.0], [-1.0, 0.0, 0.0]]), loss_scale(mask, "sequence_mean", 3)
    clip = {"clip_eps_low": 0.6, "clip_eps_high": 0.1}
    loss, sums = policy_loss(log_ratio, torch.zeros(2, 3), advantages, scale, ratio_level="sequence", **clip)
    assert float(loss) == pytest.approx(-(1.1 * 1.5 + 1.1 * 0.5) / 4 + 0.5 / 2)
    assert float(sums["clipped"]) == 2
    # The approximate KL is of the tokens, whatever the ratio is of.
    assert float(sums["approx_kl"]) == pytest.approx(sum(r - 1 - math.log(r) for r in (1.5, 0.96, 0.5)), rel=1e-5)


def finite_differences(function, at, step=1e-6):
    gradient = torch.zeros_like(at)
    for index in range(at.numel()):
        shift = torch.zeros(at.numel(), dtype=at.dtype)
        shift[index] = step
        shift = shift.view_as(at)
        gradient.view(-1)[index] = (function(at + shift) - function(at - shift)) / (2 * step)
    return gradient


def off_policy_case():
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 4 + [False]])
    old = -torch.rand(3, 5, generator=generator, dtype=torch.float64)
    logprobs = old + 0.3 * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    logprobs[2] = old[2] + 1.0  # clipped
    advantages = torch.tensor([[0.7], [-1.3], [0.9]], dtype=torch.float64)
    weights = torch.rand(3, 5, generator=generator, dtype=torch.float64) + 0.5
    weights = weights * mask / (weights * mask).sum(1, keepdim=True) * mask.sum(1, keepdim=True)
    return mask, old, logprobs, advantages, weights


def sequence_loss(logprobs, old, token_advantages, mask):
    scale = mask.double() / mask.sum(dim=1, keepdim=True) / len(mask)
    return policy_loss(logprobs, old, token_advantages, scale, ratio_level="sequence", **CLIP)[0]


def gradient_of(function, at):
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at), at)[0]


def test_with_equal_advantages_the_gradient_is_that_of_gspo():
    """Finite differences of GSPO's own objective (arXiv 2507.18071), in which the gradient flows through s."""
    mask, old, logprobs, advantages, _ = off_policy_case()

    def gspo(logprobs):
        value = torch.zeros((), dtype=torch.float64)
        for row in range(3):
            length = int(mask[row].sum())
            s = ((logprobs - old)[row, :length].sum() / length).exp()
            value -= min(s * advantages[row, 0], s.clamp(0.8, 1.28) * advantages[row, 0]) / 3
        return value

    equal = advantages.expand(3, 5)
    assert float(sequence_loss(logprobs, old, equal, mask)) == pytest.approx(float(gspo(logprobs)), rel=1e-12)
    found = gradient_of(lambda at: sequence_loss(at, old, equal, mask), logprobs)
    torch.testing.assert_close(found, finite_differences(gspo, logprobs), atol=1e-9, rtol=1e-7)
    assert torch.equal(found[2], torch.zeros(5, dtype=torch.float64))
    assert float(found[:2].abs().sum()) > 0.1


def test_token_weights_share_out_the_gradient_of_a_sequence_ratio():
    """Finite differences of the objective with the factor s / pi(y_t) held where it is, one token at a time."""
    mask, old, logprobs, advantages, weights = off_policy_case()
    held = torch.stack([(logprobs - old)[row][mask[row]].mean() for row in range(3)])[:, None] - logprobs

    def held_constant(at):
        s = (held + at).exp()
        terms = torch.minimum(s * weights * advantages, s.clamp(0.8, 1.28) * weights * advantages)
        return -sum(terms[row][mask[row]].mean() for row in range(3)) / 3

    found = gradient_of(lambda at: sequence_loss(at, old, weights * advantages, mask), logprobs)
    torch.testing.assert_close(found, finite_differences(held_constant, logprobs), atol=1e-9, rtol=1e-7)
    # The weights share out the gradient of plain GSPO and leave its value alone.
    plain = gradient_of(lambda at: sequence_loss(at, old, advantages.expand(3, 5), mask), logprobs)
    torch.testing.assert_close(found, weights * plain)
    values = [sequence_loss(logprobs, old, a, mask) for a in (weights * advantages, advantages.expand(3, 5))]
    torch.testing.assert_close(*values)
