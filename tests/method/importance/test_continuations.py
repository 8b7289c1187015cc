"""Advantages from values of states: sums by hand, and whitening against its definition."""

from dataclasses import replace

import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.importance import ContinuationAdvantages, CreditInputs
from oar.method.importance.continuations import segment_advantages
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch

NAN = float("nan")
VALUES = torch.tensor([[0.5, NAN, 0.75, NAN, NAN], [0.25, 1.0, NAN, 0.0, 0.9], [NAN, NAN, NAN, NAN, NAN]])
MASK = torch.tensor([[True] * 5, [True] * 4 + [False], [True] * 5])
REWARDS = torch.tensor([1.0, 0.0, 1.0])
BY_HAND = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.25], [0.75, -1.0, -1.0, 0.0, 0.0], [0.0] * 5])


def test_segments_earn_what_the_value_gains() -> None:
    assert torch.equal(segment_advantages(VALUES, REWARDS, MASK), BY_HAND)
    alone = segment_advantages(VALUES[1:2, :4], REWARDS[1:2], MASK[1:2, :4])
    assert torch.equal(alone, BY_HAND[1:2, :4])
    late = segment_advantages(torch.tensor([[NAN, 0.25, NAN]]), REWARDS[:1], MASK[:1, :3])
    assert torch.equal(late, torch.tensor([[0.0, 0.75, 0.75]]))


def test_a_completions_gains_add_up_to_what_it_earned_beyond_its_prompt() -> None:
    values = torch.rand(3, 7, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 7, dtype=torch.bool)  # every token is a segment of its own
    total = segment_advantages(values, REWARDS, mask).sum(dim=1)
    torch.testing.assert_close(total, REWARDS - values[:, 0])


def inputs() -> CreditInputs:
    given = credit_inputs(random_batch(2, rows=3, longest=9), AnswerMeanProbe())
    values = torch.full(given.batch.completion_mask.shape, NAN)
    values[:, 0], values[:, 2] = torch.tensor([0.5, 0.2, 0.9]), torch.tensor([0.7, 0.0, 0.9])
    return replace(given, values=values, rewards=REWARDS)


@pytest.mark.parametrize("sure", [None, 0.01])
@pytest.mark.parametrize("whiten", [True, False])
def test_sure_tokens_count_nowhere(sure: float | None, whiten: bool) -> None:
    given = inputs()
    mask, p = given.batch.completion_mask, given.scores.logprobs.exp()
    counted = mask if sure is None else mask & (p < sure)
    assert 0 < int(counted.sum()) <= int(mask.sum())
    expected = segment_advantages(given.known_values(), REWARDS, mask)
    if whiten:
        chosen = expected[counted].double()
        expected = (expected - chosen.mean()) / (chosen.var(unbiased=True) + 1e-8).sqrt()
    expected = torch.where(counted, expected * mask.sum() / counted.sum(), 0.0).float()
    found = ContinuationAdvantages(sure, whiten)(given)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if sure is not None:
        assert (found[mask & ~counted] == 0).all()
        assert not torch.equal(counted, mask)


def test_a_token_exactly_as_sure_counts_nowhere() -> None:
    given = inputs()
    p = float(given.scores.logprobs[0, 0].exp())
    for sure, counted in ((p, False), (1.001 * p, True)):
        assert bool(ContinuationAdvantages(sure, whiten=False)(given)[0, 0] != 0) == counted


def test_without_continuations_one_sentence_says_so() -> None:
    with pytest.raises(DataError, match="none were drawn"):
        ContinuationAdvantages()(replace(inputs(), values=None))
    with pytest.raises(ConfigError, match="sure must be"):
        ContinuationAdvantages(sure=1.5)
