"""Group advantages, by hand."""

import math
from functools import partial

import pytest
import torch

from oar.common.errors import DataError
from oar.method.advantages import decoupled_advantages, group_advantages, identity_weighted, overlong_penalty, whitened


def test_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    advantages = group_advantages(rewards, 4)
    # mean 1/4, unbiased std 1/2
    torch.testing.assert_close(advantages[:4], torch.tensor([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-4))
    assert torch.equal(advantages[4:], torch.zeros(4))


def test_dr_grpo_and_leave_one_out():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    plain = group_advantages(rewards, 4, divide_by_std=False)
    torch.testing.assert_close(plain, torch.tensor([0.75, -0.25, -0.25, -0.25]))
    others = group_advantages(rewards, 4, divide_by_std=False, leave_one_out=True)
    torch.testing.assert_close(others, torch.tensor([1.0, -1 / 3, -1 / 3, -1 / 3]))


def test_equal_rewards_are_exactly_zero():
    # three times 0.1 has a float32 mean that differs from 0.1 in the last bit
    assert torch.equal(group_advantages(torch.full((3,), 0.1), 3), torch.zeros(3))


def test_groups_do_not_mix():
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([5.0, 1.0])
    both = group_advantages(torch.cat([a, b]), 2)
    torch.testing.assert_close(both, torch.cat([group_advantages(a, 2), group_advantages(b, 2)]))


def test_streams_are_compared_each_by_itself():
    right, style = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0.01, 0.02, 0.01, 0.02])
    compared = partial(group_advantages, num_generations=4)
    found = decoupled_advantages(torch.stack([right, style], dim=1), [3.0, -1.0], compared)
    # By hand: (1.5, -.5, -.5, -.5) and (-.866, .866, -.866, .866), the second with a standard deviation of 0.00577.
    expected = (3 * torch.tensor([1.5, -0.5, -0.5, -0.5]) - torch.tensor([-0.851, 0.851, -0.851, 0.851])) / 4
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(decoupled_advantages(right[:, None], [0.3], compared), compared(right))


def test_what_cannot_be_told_from_a_generic_completion_counts_less():
    advantages = torch.tensor([1.0, -2.0, 0.5, 1.0, 1.0, -1.0])
    # Two groups of two ordinary completions and a generic one: as likely as it, likelier by log 3, and far likelier.
    likelihoods = torch.tensor([-1.0, -1.0 + math.log(3), -1.0, 50.0, -2.0, -2.0])
    found = identity_weighted(advantages, likelihoods, 3, generic=1, strength=0.02)
    of_three = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    expected = [1 - 0.02 * math.log(2), -2 * (1 - 0.02 * of_three), 0.5, 1.0, 1 - 0.02 * math.log(2), -1.0]
    torch.testing.assert_close(found, torch.tensor(expected))
    # Two generic ones stand for their mean.
    found = identity_weighted(torch.ones(3), torch.tensor([-1.0, -2.0, 0.0]), 3, generic=2, strength=1.0)
    torch.testing.assert_close(found, torch.tensor([1 - math.log(2), 1.0, 1.0]))


def test_whitened_by_hand():
    values, mask = torch.tensor([[1.0, 3.0, 99.0]]), torch.tensor([[True, True, False]])
    torch.testing.assert_close(whitened(values, mask), torch.tensor([[-(0.5**0.5), 0.5**0.5, 0.0]]))
    alone = torch.tensor([[True, False, False]])  # has no variance
    torch.testing.assert_close(whitened(values, alone), torch.tensor([[1.0, 0.0, 0.0]]))


def test_incomplete_group_is_refused():
    with pytest.raises(DataError, match="groups of 4"):
        group_advantages(torch.ones(6), 4)


def test_overlong_penalty_by_hand():
    """DAPO's own numbers: 20,480 tokens at most, of which the last 4,096 cost up to 1."""
    lengths = torch.tensor([1, 16_384, 16_385, 17_408, 18_432, 20_480])
    expected = torch.tensor([0.0, 0.0, -1 / 4096, -0.25, -0.5, -1.0])
    torch.testing.assert_close(overlong_penalty(lengths, 20_480, 4_096), expected)
