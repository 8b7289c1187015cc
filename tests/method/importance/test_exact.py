"""Exact token values, held against whole forwards of the model: what tokens change adds up to what was won or lost."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.method.importance import CreditInputs, ExactAdvantages, ExactWeights, needs_batch
from oar.method.importance.exact import exact_deltas
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch, tiny_model

ROWS, UNANSWERED = 4, 2
ADVANTAGES = torch.tensor([1.0, -0.5, 2.0, -1.0])


def marked(name: str, hits: str) -> CreditInputs:
    """Completions whose first tokens are decided, in `hits` 1 where they are right, but for -; one has no answer, and so no
    reasoning. They were drawn at another temperature than 1.
    """
    batch = random_batch(3, ROWS, longest=12, unanswered=(UNANSWERED,))
    right = torch.zeros_like(batch.completion_ids)
    for place, hit in enumerate(hits):
        right[:, place] = 0 if hit == "-" else batch.completion_ids[:, place] + (0 if hit == "1" else 1)
    given = credit_inputs(batch, AnswerMeanProbe())
    return replace(given, marks={name: right}, advantages=ADVANTAGES, temperature=0.7)


def probabilities(inputs: CreditInputs, name: str) -> Tensor:
    """Of the right tokens, (B, T), by a forward of each whole row; 1 where nothing is decided."""
    batch, right, found = inputs.batch, inputs.marks[name], torch.ones(inputs.batch.completion_mask.shape)
    for row, place in (batch.reasoning_mask & (right != 0)).nonzero().tolist():
        before = batch.input_ids[row, : batch.prompt_lengths[row] + place]
        found[row, place] = tiny_model()(before[None]).logits[0, -1].softmax(-1)[right[row, place]]
    return found


def test_each_of_several_tokens_is_worth_what_was_not_expected_of_it() -> None:
    inputs = marked("right", "101")
    decided = inputs.batch.reasoning_mask & (inputs.marks["right"] != 0)
    hit = (inputs.batch.completion_ids == inputs.marks["right"]).float()
    expected = ((hit - probabilities(inputs, "right")) * decided).detach()
    torch.testing.assert_close(exact_deltas(inputs), expected)
    assert decided.sum() >= 5


@pytest.mark.parametrize("hits", ["111", "110", "011", "1-0-1", "-1-1"])
def test_the_values_of_a_chain_add_up_to_the_reward_less_what_was_expected(hits: str) -> None:
    inputs = marked("all_right", hits)
    decided = inputs.batch.reasoning_mask & (inputs.marks["all_right"] != 0)
    right = (inputs.batch.completion_ids == inputs.marks["all_right"]) | ~decided
    reward, expected = right.all(dim=1).float(), probabilities(inputs, "all_right").prod(dim=1).detach()
    delta = exact_deltas(inputs)
    answered = inputs.batch.has_answer
    torch.testing.assert_close(delta.sum(dim=1)[answered], (reward - expected)[answered])
    first_wrong = (~right).float().argmax(dim=1)
    for row in (~right).any(dim=1).nonzero()[:, 0].tolist():
        assert (delta[row, first_wrong[row] + 1 :] == 0).all()  # nothing is left to lose
        assert delta[row, first_wrong[row]] < 0


@pytest.mark.parametrize("match_sign", [True, False])
@pytest.mark.parametrize("hits", ["101", "111"])
def test_weights_have_mean_one_and_stand_where_something_was_decided(match_sign: bool, hits: str) -> None:
    inputs = marked("right", hits)
    weights, delta = ExactWeights(match_sign)(inputs), exact_deltas(inputs)
    for row, advantage in enumerate(ADVANTAGES.tolist()):
        reasoning = inputs.batch.reasoning_mask[row]
        assert (weights[row][~reasoning] == 1).all()
        part = delta[row] * advantage > 0 if match_sign else delta[row] != 0
        if not part.any():
            assert (weights[row] == 1).all()
            continue
        assert weights[row][reasoning].mean() == pytest.approx(1.0, rel=1e-5)
        assert torch.equal(weights[row][reasoning] > 0, part[reasoning])
        ratio = weights[row][part] / delta[row][part].abs()
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_advantages_are_the_values_and_a_completion_without_an_answer_keeps_its_own() -> None:
    inputs = marked("right", "01")
    found = ExactAdvantages(scale=2.0)(inputs)
    assert (found[UNANSWERED] == ADVANTAGES[UNANSWERED]).all()
    others = inputs.batch.has_answer
    torch.testing.assert_close(found[others], 2.0 * exact_deltas(inputs)[others])


@pytest.mark.parametrize("marked_as", ["right", "all_right"])
def test_of_unit_size_they_have_a_mean_square_of_one_where_something_was_decided(marked_as: str) -> None:
    inputs, signal = marked(marked_as, "101"), ExactAdvantages(scale=2.0, unit_size=True)
    assert needs_batch(signal)
    assert not needs_batch(ExactAdvantages())
    others = inputs.batch.has_answer
    found, deltas = signal(inputs)[others], exact_deltas(inputs)[others]
    values = [value for value in deltas.flatten().tolist() if value]  # of all completions: their sizes are kept
    root = math.sqrt(sum(value * value for value in values) / len(values))
    torch.testing.assert_close(found, 2.0 / root * deltas)
    assert (signal(inputs)[UNANSWERED] == ADVANTAGES[UNANSWERED]).all()


def test_where_nothing_was_decided_unit_size_leaves_nothing() -> None:
    inputs = marked("right", "")
    found = ExactAdvantages(unit_size=True)(inputs)[inputs.batch.has_answer]
    assert (found == 0).all()


def test_a_task_that_does_not_say_what_is_right_is_refused() -> None:
    with pytest.raises(DataError, match=r"marks causal: train on sheets"):
        exact_deltas(replace(marked("right", "1"), marks={"causal": torch.ones(ROWS, 1)}))
