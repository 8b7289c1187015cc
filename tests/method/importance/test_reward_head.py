"""A reward head's regression against a naive one, and that its gains change no gradient on average, by enumeration."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.advantages import centred
from oar.method.importance import CreditInputs, RewardHead, RewardHeadAdvantages
from oar.method.importance.reward_head import freed_of_others
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch

CODES, WIDTH = 3, 4


def completions(count: int, seed: int, tokens: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Changes (N, C, H + 1), what they earn by a fixed slope, and the sum of [1, state] [1, state]^T."""
    rng = torch.Generator().manual_seed(seed)
    surprise = torch.randn(count, tokens, CODES, generator=rng)
    states = 2 + torch.randn(count, tokens, WIDTH, generator=rng) * torch.tensor([3.0, 1.0, 0.5, 0.1])
    states = torch.cat([torch.ones(count, tokens, 1), states], dim=2)
    slope = torch.randn(CODES, WIDTH + 1, generator=torch.Generator().manual_seed(9))
    changes = torch.einsum("ntc,nth->nch", surprise, states)
    return changes, (changes * slope).sum(dim=(1, 2)), torch.einsum("nth,ntk->hk", states, states).double()


def test_the_slope_is_that_of_a_naive_ridge_regression() -> None:
    changes, rewards, moments = completions(12, 0)
    groups, how = torch.arange(12) // 3, RewardHead(codes=CODES, ridge=0.3)
    seen = moments[0, 0].item()
    mean = moments[0, 1:].numpy() / seen
    spread = moments[1:, 1:].numpy() / seen - np.outer(mean, mean)
    sizes, directions = np.linalg.eigh(spread)
    white = directions @ np.diag((sizes + 0.3 * sizes.mean()) ** -0.5) @ directions.T
    design = []
    for change in changes.double().numpy():
        plain = np.column_stack([change[:, 0], (change[:, 1:] - np.outer(change[:, 0], mean)) @ white])
        design.append(plain.ravel())
    x, y = np.array(design), rewards.double().numpy()
    for group in range(4):
        rows = slice(3 * group, 3 * group + 3)
        x[rows], y[rows] = x[rows] - x[rows].mean(axis=0), y[rows] - y[rows].mean()
    size = 0.3 * (x**2).sum(axis=1).mean()
    expected = np.linalg.solve(x.T @ x + size * np.eye(x.shape[1]), x.T @ y).reshape(CODES, -1)
    slope = how.slope(changes, rewards, groups, moments)
    new = completions(7, 1)[0].double().numpy()
    foretold = [
        np.column_stack([one[:, 0], (one[:, 1:] - np.outer(one[:, 0], mean)) @ white]).ravel() @ expected.ravel()
        for one in new
    ]
    found = (torch.tensor(new) * slope.double()).sum(dim=(1, 2))
    np.testing.assert_allclose(found.numpy(), foretold, rtol=1e-3, atol=1e-3)


def test_what_adds_up_from_tokens_is_found() -> None:
    changes, rewards, moments = completions(60, 0)
    slope = RewardHead(codes=CODES, ridge=1e-6).slope(changes, rewards, torch.arange(60) // 4, moments)
    new, earned, _ = completions(20, 1)
    torch.testing.assert_close((new * slope).sum(dim=(1, 2)), earned, atol=0.05, rtol=0.01)


def test_a_prompt_that_earns_more_in_all_changes_nothing() -> None:
    changes, rewards, moments = completions(12, 0)
    groups, how = torch.arange(12) // 4, RewardHead(codes=CODES)
    slope = how.slope(changes, rewards, groups, moments)
    easier = rewards + torch.tensor([0.0, 50.0, -7.0])[groups]
    torch.testing.assert_close(how.slope(changes, easier, groups, moments), slope, atol=1e-3, rtol=1e-3)
    assert not how.slope(changes, torch.ones(12), groups, moments).any()


def test_gains_change_no_gradient_on_average() -> None:
    """All pairs of completions of two tokens of three, by their probabilities; the second token's policy hangs on the first."""
    rng = torch.Generator().manual_seed(0)
    logits = (
        torch.randn(4, 3, generator=rng).double().requires_grad_()
    )  # before the first token, and behind each first one
    rewards = torch.randn(3, 3, generator=rng).double()
    worth = torch.randn(4, 3, generator=rng).double()  # of a token, whatever: the gains need not be right
    policy = logits.softmax(dim=1)
    gains = (worth - (policy.detach() * worth).sum(dim=1, keepdim=True)) * 5
    every = list(product(range(3), repeat=2))
    mean: dict[bool, torch.Tensor] = {}
    for known in (False, True):
        total = torch.zeros_like(logits)
        for pair in product(every, repeat=2):
            logprobs = torch.stack([torch.stack([policy[0, a].log(), policy[1 + a, b].log()]) for a, b in pair])
            own = torch.stack([torch.stack([gains[0, a], gains[1 + a, b]]) for a, b in pair]) * known
            earned = torch.stack([rewards[a, b] for a, b in pair])
            advantages = freed_of_others(earned, own, torch.zeros(2, dtype=torch.long))
            gradient = torch.autograd.grad((advantages * logprobs).sum(), logits, retain_graph=True)[0]
            total += logprobs.sum().exp().detach() * gradient
        mean[known] = total
    torch.testing.assert_close(mean[True], mean[False], atol=1e-12, rtol=1e-9)
    expected = sum(policy[0, a] * policy[1 + a, b] * rewards[a, b] for a, b in every)
    (exact,) = torch.autograd.grad(torch.as_tensor(expected), logits)
    torch.testing.assert_close(mean[True], exact, atol=1e-12, rtol=1e-9)  # of 2 completions, each times 1 - 1/2


def given(gains: torch.Tensor, rewards: torch.Tensor) -> CreditInputs:
    made = credit_inputs(random_batch(0, rows=6), AnswerMeanProbe())
    return replace(made, rewards=rewards, groups=torch.arange(6) // 3, process_rewards=gains)


def test_advantages_are_those_of_loops() -> None:
    mask = random_batch(0, rows=6).completion_mask
    gains = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))  # outside the completions as well
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])
    found = RewardHeadAdvantages(RewardHead())(given(gains, rewards))
    lengths = mask.sum(dim=1).tolist()
    own = [gains[row, :length].tolist() for row, length in enumerate(lengths)]
    rest = [float(rewards[row]) - sum(own[row]) for row in range(6)]
    expected = []
    for row in range(6):
        first = 3 * (row // 3)
        mean = (sum(rest[first : first + 3]) - rest[row]) / 2
        for token in range(lengths[row]):
            others = sum(own[row][:token]) + sum(own[row][token + 1 :])
            expected.append(float(rewards[row]) - others - mean)
    size = (sum(one**2 for one in expected) / len(expected)) ** 0.5
    assert found[mask].tolist() == pytest.approx([one / size for one in expected], abs=1e-4)
    assert not found[~mask].any()


def test_without_gains_it_is_the_rewards_and_without_differences_nothing() -> None:
    mask, rewards = random_batch(0, rows=6).completion_mask, torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])
    plain = RewardHeadAdvantages(RewardHead())(given(torch.zeros(mask.shape), rewards))
    away = centred(rewards, torch.arange(6) // 3)
    away = away[:, None] * mask
    torch.testing.assert_close(plain, away / away[mask].square().mean().sqrt())
    alike = torch.tensor([0.3, 0.3, 0.3, 0.7, 0.7, 0.7])
    assert not RewardHeadAdvantages(RewardHead())(given(torch.ones(mask.shape), alike)).any()


def test_trust_is_what_earlier_rewards_allow() -> None:
    how = RewardHead()
    for sums, expected in (([0.0, 0.0], 0.0), ([3.0, 4.0], 0.75), ([8.0, 4.0], 1.0), ([-1.0, 4.0], 0.0)):
        assert float(how.trust(torch.tensor(sums))) == expected


def test_codes_are_of_like_length_and_always_the_same() -> None:
    codes = RewardHead(codes=64).token_codes(500, torch.device("cpu"))
    assert torch.equal(codes, RewardHead(codes=64).token_codes(500, torch.device("cpu")))
    assert float(codes.square().sum(dim=1).mean()) == pytest.approx(1, abs=0.05)
    assert float((codes @ codes.T).fill_diagonal_(0).abs().mean()) < 0.15


@pytest.mark.parametrize("wrong", [{"codes": 0}, {"memory": 0}, {"ridge": 0.0}])
def test_what_no_regression_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="codes and memory must be 1 or more, and ridge above 0"):
        RewardHead(**wrong)


def test_without_a_head_one_sentence_says_so() -> None:
    with pytest.raises(DataError, match="a reward model or head beside the policy"):
        RewardHeadAdvantages(RewardHead())(replace(given(torch.zeros(1), torch.zeros(6)), process_rewards=None))
