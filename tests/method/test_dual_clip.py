"""The second clip as a surrogate is the objective as it is usually written."""

import pytest
import torch

from oar.common.errors import ConfigError
from oar.method.losses import policy_loss
from oar.method.surrogates import DualClip


def test_it_is_the_textbook_objective_in_value_and_gradient() -> None:
    log_ratio = torch.linspace(-2, 3, 41)[None].repeat(2, 1)
    advantages = torch.tensor([[0.7], [-1.3]]).expand(2, 41)
    clips = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
    own = log_ratio.clone().requires_grad_()
    scale = torch.linspace(0.5, 1.5, 82).reshape(2, 41)
    loss, _ = policy_loss(own, torch.zeros(2, 41), advantages, scale, surrogate=DualClip(3.0), **clips)
    plain = log_ratio.clone().requires_grad_()
    ratio = plain.exp()
    once = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages)
    expected = (torch.where(advantages < 0, torch.minimum(once, -3 * advantages), once) * scale).sum()
    torch.testing.assert_close(loss, expected)
    (found,) = torch.autograd.grad(loss, own)
    (textbook,) = torch.autograd.grad(expected, plain)
    torch.testing.assert_close(found, textbook)
    assert (found[1, log_ratio[1] > 1.1] == 0).all()  # ln 3 = 1.0986


def test_a_bound_within_the_first_clip_is_refused() -> None:
    with pytest.raises(ConfigError, match="largest must be above 1"):
        DualClip(1.0)
