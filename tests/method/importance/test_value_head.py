"""A value head's regression against least squares, and its advantages against loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.importance import CreditInputs, ValueHead, ValueHeadAdvantages
from oar.method.importance.value_head import generalised_advantages
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    states = 300 + torch.randn(count, 5, generator=rng)  # far from 0: squares in float32 would lose their spread
    return states, states @ torch.tensor([1.0, -2.0, 0.0, 0.5, 0.0]) + 7 + torch.randn(count, generator=rng)


def test_almost_without_a_ridge_it_is_least_squares() -> None:
    how, (states, rewards) = ValueHead(ridge=1e-9), examples(40, 0)
    slope, constant = how.solved(how.sums(states, rewards))
    design = np.column_stack([np.ones(40), states.numpy()]).astype(np.float64)
    expected = np.linalg.lstsq(design, rewards.double().numpy(), rcond=None)[0]
    np.testing.assert_allclose(constant.numpy(), expected[0], rtol=1e-4)
    np.testing.assert_allclose(slope.numpy(), expected[1:], rtol=1e-4, atol=1e-5)


def test_the_ridge_is_a_share_of_the_mean_variance_of_a_direction() -> None:
    how, (states, rewards) = ValueHead(ridge=0.3), examples(40, 0)
    slope, constant = how.solved(how.sums(states, rewards))
    x, y = states.double().numpy(), rewards.double().numpy()
    covariance, toward = np.cov(x.T, ddof=0), (x - x.mean(axis=0)).T @ (y - y.mean()) / 40
    expected = np.linalg.solve(covariance + 0.3 * np.diag(covariance).mean() * np.eye(5), toward)
    np.testing.assert_allclose(slope.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(constant.numpy(), y.mean() - x.mean(axis=0) @ expected, rtol=1e-4)


def test_the_ridge_leaves_the_mean_alone() -> None:
    how, (states, rewards) = ValueHead(ridge=1e9), examples(40, 0)
    slope, constant = how.solved(how.sums(states, rewards))
    assert slope.abs().max() < 1e-6
    assert float(constant) == pytest.approx(float(rewards.mean()), rel=1e-4)


def test_parts_sum_to_the_whole_and_nothing_says_nothing() -> None:
    how, (states, rewards) = ValueHead(), examples(40, 1)
    parts = how.nothing(5, states.device) + how.sums(states[:13], rewards[:13]) + how.sums(states[13:], rewards[13:])
    torch.testing.assert_close(parts, how.sums(states, rewards))
    slope, constant = how.solved(how.nothing(5, states.device))
    assert not slope.any()
    assert not constant


def given(values: torch.Tensor) -> CreditInputs:
    made = credit_inputs(random_batch(0, rows=6), AnswerMeanProbe())
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.25])
    return replace(made, rewards=rewards, state_values=values * made.batch.completion_mask)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_advantages_are_those_of_loops(decay: float) -> None:
    shape = random_batch(0, rows=6).completion_mask.shape
    inputs = given(torch.rand(shape, generator=torch.Generator().manual_seed(0)))
    assert inputs.rewards is not None
    assert inputs.state_values is not None
    mask = inputs.batch.completion_mask
    expected = []
    for row, length in enumerate(inputs.batch.completion_lengths.tolist()):
        worth = [*inputs.state_values[row, :length].tolist(), float(inputs.rewards[row])]
        changes = [worth[at + 1] - worth[at] for at in range(length)]
        expected += [
            sum(decay**later * change for later, change in enumerate(changes[at:])) for at in range(len(changes))
        ]
    plain = generalised_advantages(inputs.state_values, inputs.rewards, mask, decay)
    flat = torch.tensor(expected)
    torch.testing.assert_close(plain[mask], flat, atol=1e-5, rtol=1e-5)
    assert not plain[~mask].any()
    found = ValueHeadAdvantages(ValueHead(), decay)(inputs)
    torch.testing.assert_close(found[mask], (flat - flat.mean()) / flat.std(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wrong", [{"memory": 0.0}, {"memory": 1.5}, {"ridge": 0.0}])
def test_what_no_regression_has_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"memory must be above 0 and at most 1, and ridge above 0"):
        ValueHead(**wrong)


def test_without_values_one_sentence_says_so() -> None:
    with pytest.raises(ConfigError, match="decay must be between 0 and 1"):
        ValueHeadAdvantages(ValueHead(), 1.1)
    with pytest.raises(DataError, match="value head beside the policy"):
        ValueHeadAdvantages(ValueHead())(replace(given(torch.zeros(1)), state_values=None))
