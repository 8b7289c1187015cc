"""PRIME's advantages against loops, and the loss of its reward model."""

from dataclasses import replace
from math import exp, log

import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.importance import CreditInputs, ImplicitReward, ImplicitRewardAdvantages
from oar.method.importance.prime import compared
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch

SIGNAL = ImplicitRewardAdvantages(ImplicitReward())


def inputs(scale: float = 0.3) -> CreditInputs:
    given = credit_inputs(random_batch(0, rows=6), AnswerMeanProbe())
    drawn = torch.randn(given.batch.completion_mask.shape, generator=torch.Generator().manual_seed(0))
    return replace(
        given,
        groups=torch.tensor([0, 0, 0, 7, 7, 7]),
        correct=torch.tensor([True, False, False, True, True, False]),
        process_rewards=scale * drawn * given.batch.completion_mask,
    )


def test_advantages_are_those_of_loops() -> None:
    given = inputs()
    lengths = given.batch.completion_lengths.tolist()
    q = [row[:length].tolist() for row, length in zip(given.process_rewards, lengths, strict=True)]
    returns = []
    for row in range(6):
        group = range(row // 3 * 3, row // 3 * 3 + 3)
        baseline = sum(sum(q[other]) / len(q[other]) for other in group) / 2
        rewards = [5 * (value * 3 / 2 - baseline) for value in q[row]]
        right = [float(given.correct[other]) for other in group]
        rewards[-1] += float(given.correct[row]) * 3 / 2 - sum(right) / 2
        returns.append([sum(rewards[at:]) for at in range(len(rewards))])
    flat = torch.tensor([value for row in returns for value in row])
    expected = (flat - flat.mean()) / flat.std()
    found = SIGNAL(given)
    torch.testing.assert_close(found[given.batch.completion_mask], expected, atol=1e-4, rtol=1e-4)
    assert (found[~given.batch.completion_mask] == 0).all()


def test_without_process_rewards_it_is_leave_one_out_on_the_outcome() -> None:
    given = inputs(scale=0.0)
    found, mask = SIGNAL(given), given.batch.completion_mask
    loo = torch.tensor([1.0, -0.5, -0.5, 0.5, 0.5, -1.0])[:, None].expand(mask.shape)[mask]
    torch.testing.assert_close(found[mask], (loo - loo.mean()) / loo.std(), atol=1e-4, rtol=1e-4)


def test_outcomes_against_the_others_by_hand() -> None:
    outcomes = torch.tensor([1.0, 0.0, 0.0, 1.0])
    found = compared(outcomes[:, None], outcomes, torch.tensor([3, 3, 3, 5]))[:, 0]
    torch.testing.assert_close(found, torch.tensor([1.0, -0.5, -0.5, 1.0]))  # the last one has no other


def test_the_loss_by_hand() -> None:
    q = torch.tensor([[10.0, 30.0], [-20.0, 0.0]])
    found = ImplicitReward(beta=0.05).loss(q, torch.tensor([True, True]))
    assert found.tolist() == pytest.approx([log(1 + exp(-2)), log(1 + exp(1))])
    wrong = ImplicitReward(beta=0.05).loss(q, torch.tensor([False, False]))
    assert wrong.tolist() == pytest.approx([log(1 + exp(2)), log(1 + exp(-1))])


def test_what_is_missing_or_cannot_be_is_said() -> None:
    with pytest.raises(DataError, match="trains a reward model or head beside the policy"):
        SIGNAL(replace(inputs(), process_rewards=None))
    with pytest.raises(ConfigError, match="beta, relative_lr and max_grad_norm must be above 0"):
        ImplicitReward(beta=0.0)
