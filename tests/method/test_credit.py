"""The composition estimator -> gate -> token advantages."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch

from oar.common.errors import DataError
from oar.method.credit import CreditAssigner
from oar.method.gating import make_gate
from oar.method.importance import PerturbationImportance, UniformImportance
from oar.method.importance.base import CreditInputs
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch

GATE = make_gate(tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
OAR_P = PerturbationImportance(max_tokens_per_forward=512)


def assigned(batch, advantages, estimator, **options):
    inputs = credit_inputs(batch, AnswerMeanProbe())
    assigner = CreditAssigner(estimator, GATE, inputs.probe, **options)
    return assigner(inputs.model, batch, inputs.scores, advantages, seeds=inputs.seeds)


def test_uniform_importance_is_grpo_to_the_bit():
    batch, advantages = random_batch(0), torch.tensor([0.3, -0.7, 1.1, -0.1])
    credit = assigned(batch, advantages, UniformImportance())
    assert torch.equal(credit.token_advantages, advantages[:, None].expand_as(credit.token_advantages))


def test_mass_is_kept_and_only_reasoning_is_reweighted():
    batch, advantages = random_batch(1), torch.tensor([0.3, -0.7, 1.1, -0.1])
    credit = assigned(batch, advantages, OAR_P)
    reasoning = (credit.token_weights * batch.reasoning_mask).sum(dim=1)
    torch.testing.assert_close(reasoning, batch.reasoning_mask.sum(dim=1).float())
    assert (credit.token_weights[~batch.reasoning_mask] == 1).all()
    assert (credit.token_weights[batch.reasoning_mask] != 1).any()
    assert torch.equal(credit.token_advantages.sign(), advantages[:, None].sign().expand_as(credit.token_weights))


def test_fallback_and_zero_advantage_keep_weight_one():
    batch, advantages = random_batch(5, unanswered=(1,)), torch.tensor([0.3, -0.7, 0.0, -0.1])
    credit = assigned(batch, advantages, OAR_P)
    assert (credit.token_weights[1] == 1).all()
    assert (credit.token_weights[2] == 1).all()
    assert (credit.token_weights[0][batch.reasoning_mask[0]] != 1).any()
    # a completion's weights depend on no other completion
    alone = assigned(batch.rows(torch.tensor([0])), advantages[:1], OAR_P)
    torch.testing.assert_close(alone.token_weights[0], credit.token_weights[0], atol=1e-4, rtol=1e-4)


def test_nothing_to_score():
    batch = random_batch(3, unanswered=(0, 1, 2, 3))
    credit = assigned(batch, torch.ones(4), OAR_P)
    assert torch.equal(credit.token_weights, torch.ones_like(credit.token_weights))
    assert torch.equal(credit.token_importance, torch.zeros_like(credit.token_weights))


def test_times_surprisal_multiplies_the_importance_before_the_gate():
    batch, advantages = random_batch(4), torch.tensor([0.3, -0.7, 1.1, -0.1])
    plain = assigned(batch, advantages, OAR_P)
    product = assigned(batch, advantages, OAR_P, times_surprisal=True)
    expected = plain.token_importance * -credit_inputs(batch, AnswerMeanProbe()).scores.logprobs
    torch.testing.assert_close(product.token_importance, expected)
    torch.testing.assert_close(product.token_weights, GATE(expected, batch.reasoning_mask))
    assert not torch.allclose(product.token_weights, plain.token_weights)


def test_importance_that_is_not_a_number_names_its_row():
    batch = random_batch(4)

    def broken(given):
        importance = torch.ones(given.batch.reasoning_mask.shape)
        importance[2, 0] = torch.nan
        return importance

    with pytest.raises(DataError, match="row 2"):
        assigned(batch, torch.ones(4), broken)


@dataclass(frozen=True)
class Weights:
    """A signal that gives weights itself: twice as much to later tokens."""

    factor: float = 1.0
    gives: ClassVar[Literal["weights"]] = "weights"

    def __call__(self, inputs: CreditInputs) -> torch.Tensor:
        steps = torch.arange(inputs.batch.completion_mask.shape[1])
        return (self.factor * (1.0 + (steps > 2))).expand(inputs.batch.completion_mask.shape).float()


def test_weights_without_a_gate_reach_every_token_and_keep_the_mass_where_asked():
    batch, advantages = random_batch(5, unanswered=(1,)), torch.tensor([0.3, -0.7, 0.0, -0.1])
    mask = batch.completion_mask
    credit = assigned(batch, advantages, Weights(3.0))
    assert (credit.token_weights[2] == 1).all()
    for row in (0, 1, 3):
        count = int(mask[row].sum())
        assert credit.token_weights[row, :count].tolist() == [3.0] * min(3, count) + [6.0] * (count - 3)
    torch.testing.assert_close(credit.token_advantages, advantages[:, None] * credit.token_weights)
    kept = assigned(batch, advantages, Weights(3.0), preserve_mass=True).token_weights * mask
    torch.testing.assert_close(kept.sum(dim=1), mask.sum(dim=1).float())


@dataclass(frozen=True)
class Compared:
    """How many completions it was shown, at each of their tokens; NaN outside them, which is allowed."""

    gives: ClassVar[Literal["importance", "weights"]] = "importance"
    needs_batch: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> torch.Tensor:
        mask = inputs.batch.completion_mask
        return torch.where(mask, float(len(mask)), torch.nan)


@dataclass(frozen=True)
class ComparedWeights(Compared):
    gives: ClassVar[Literal["importance", "weights"]] = "weights"


@pytest.mark.parametrize("signal", [Compared(), ComparedWeights()])
def test_a_signal_that_compares_is_shown_all_completions(signal):
    batch, advantages = random_batch(5, unanswered=(1,)), torch.tensor([0.3, -0.7, 0.0, -0.1])
    credit = assigned(batch, advantages, signal)
    shown = credit.token_importance if signal.gives == "importance" else credit.token_weights
    assert (shown[0][batch.completion_mask[0]] == 4).all()
    assert all(torch.isfinite(found).all() for found in (shown, credit.token_weights, credit.token_advantages))


@dataclass(frozen=True)
class Signed:
    """Token advantages by their place: -0.5, 0.25, then 2 throughout."""

    gives: ClassVar[Literal["advantages"]] = "advantages"

    def __call__(self, inputs: CreditInputs) -> torch.Tensor:
        values = torch.tensor([-0.5, 0.25, *[2.0] * (inputs.batch.completion_mask.shape[1] - 2)])
        return values.expand(inputs.batch.completion_mask.shape)


def test_a_signed_advantage_weighs_what_its_size_is_of_the_completions():
    batch, advantages = random_batch(5, unanswered=(1,)), torch.tensor([0.5, -0.25, 0.0, -1.0])
    credit = assigned(batch, advantages, Signed())
    mask = batch.completion_mask
    expected = {0: [1.0, 0.5, 4.0], 1: [2.0, 1.0, 8.0], 2: [1.0, 1.0, 1.0], 3: [0.5, 0.25, 2.0]}
    for row, (first, second, others) in expected.items():
        count = int(mask[row].sum())
        assert credit.token_weights[row, :count].tolist() == [first, second, *[others] * (count - 2)]
        assert credit.token_advantages[row, :count].tolist() == [-0.5, 0.25, *[2.0] * (count - 2)]
    assert (credit.token_weights[~mask] == 1).all()


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_weights_that_cannot_be_are_refused(factor):
    with pytest.raises(DataError, match="Weights must give finite weights"):
        assigned(random_batch(5), torch.ones(4), Weights(factor))
