"""The optimal token baseline against loops as verl's code reads, and what it must do in cases that are known."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.method.credit import CreditAssigner
from oar.method.forward import projection
from oar.method.importance import CreditInputs, TokenBaseline
from oar.method.probes import AnswerMeanProbe
from tests.method.test_credit import GATE
from tests.models import credit_inputs, random_batch

GROUPS = torch.tensor([3, 3, 3, 5, 5, 7])
REWARDS = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 1.0])


def inputs() -> CreditInputs:
    given = credit_inputs(random_batch(1, rows=6), AnswerMeanProbe())
    return replace(given, groups=GROUPS, rewards=REWARDS, advantages=torch.ones(6))


def energies(given: CreditInputs) -> list[list[float]]:
    """1 - 2 p + sum of squares, of each token, from whole logits."""
    batch, found = given.batch, []
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        ids = batch.input_ids[row, : prompt + length]
        with torch.no_grad():
            p = (given.model(ids[None]).logits[0, prompt - 1 : -1] / given.temperature).softmax(-1)
        taken = p[range(length), ids[prompt:]]
        found.append((1 - 2 * taken + p.square().sum(-1)).tolist())
    return found


def plain(given: CreditInputs, lone_tail: bool) -> Tensor:
    """Group by group, position by position."""
    energy, found = energies(given), torch.zeros(given.batch.completion_mask.shape)
    for row, own in enumerate(energy):
        group = [other for other in range(len(energy)) if GROUPS[other] == GROUPS[row]]
        for t in range(len(own)):
            there = [other for other in group if len(energy[other]) > t]
            weights = {other: sum(energy[other][: t + 1]) for other in there}
            baseline = sum(float(REWARDS[one]) * w for one, w in weights.items()) / (sum(weights.values()) + 1e-8)
            if len(group) == 1 or (len(there) == 1 and lone_tail):
                baseline = 0.0
            found[row, t] = float(REWARDS[row]) - baseline
    return found


@pytest.mark.parametrize("lone_tail", [True, False])
def test_advantages_are_those_of_the_definition(lone_tail: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs()
    mask, expected = given.batch.completion_mask, plain(given, lone_tail)
    torch.testing.assert_close(TokenBaseline(lone_tail)(given) * mask, expected * mask, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(projection, "CPU_BLOCK", 1)  # token by token, row by row: nothing depends on what goes together
    found = TokenBaseline(lone_tail, max_tokens_per_forward=1)(given)
    torch.testing.assert_close(found * mask, expected * mask, atol=1e-5, rtol=1e-4)
    if lone_tail:
        assert (expected != plain(given, False)).any(), "the example has no tail where one completion is alone"


def test_squared_probabilities_are_of_the_distribution_that_was_sampled() -> None:
    given = replace(inputs(), temperature=0.5)
    scores = TokenBaseline().collision(given)
    for row, own in enumerate(energies(given)):
        batch = given.batch
        ids = batch.input_ids[row, : int(batch.prompt_lengths[row]) + len(own)]
        with torch.no_grad():
            p = (given.model(ids[None]).logits[0, int(batch.prompt_lengths[row]) - 1 : -1] / 0.5).softmax(-1)
        torch.testing.assert_close(scores[row, : len(own)], p.square().sum(-1), atol=1e-6, rtol=1e-5)


def test_equal_rewards_leave_no_advantage_and_a_shift_of_rewards_changes_nothing() -> None:
    given, signal = inputs(), TokenBaseline(lone_tail=False)
    mask = given.batch.completion_mask
    assert float((signal(given) * mask)[3:5].abs().max()) < 1e-5
    moved = replace(given, rewards=REWARDS + 3)
    torch.testing.assert_close((signal(moved) * mask)[:5], (signal(given) * mask)[:5], atol=1e-4, rtol=1e-4)


def test_equal_energies_make_it_the_groups_mean() -> None:
    """Two completions that are the same token for token, one of them right: R - mean."""
    given = inputs().rows(torch.tensor([0, 0]))
    given = replace(given, rewards=torch.tensor([1.0, 0.0]), groups=torch.tensor([0, 0]))
    mask = given.batch.completion_mask[0]
    found = TokenBaseline()(given)[:, mask]
    torch.testing.assert_close(found, torch.tensor([[0.5], [-0.5]]).expand_as(found))


def test_it_replaces_the_advantage_and_asks_for_what_it_needs() -> None:
    given = inputs()
    found = CreditAssigner(TokenBaseline(), GATE, given.probe).assign(given)
    assert torch.equal(found.token_advantages, TokenBaseline()(given))
    with pytest.raises(DataError, match="rewards"):
        TokenBaseline()(replace(given, rewards=None))
    with pytest.raises(DataError, match="groups"):
        TokenBaseline()(replace(given, groups=None))
