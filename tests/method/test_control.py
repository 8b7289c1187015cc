"""A control has a method's numbers without what the method knows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oar.method.control import PARTS, by_parts, controlled, shuffled
from oar.method.importance.base import CreditSignal
from oar.names import CONTROLS
from tests.method.test_credit import OAR_P, Signed, Weights, assigned
from tests.models import random_batch


def ragged(seed: int, counts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(max(counts))[None] < torch.tensor(counts)[:, None]
    return torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)), mask


@given(st.integers(0, 99), st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(max))
def test_shuffled_keeps_each_rows_values(seed: int, counts: list[int]) -> None:
    values, mask = ragged(seed, counts)
    found = shuffled(values, mask, range(len(counts)))
    for row, own in enumerate(mask):
        assert torch.equal(found[row, own].sort().values, values[row, own].sort().values)
        alone = shuffled(values[row : row + 1, : counts[row]], own[None, : counts[row]], [row])
        assert torch.equal(alone[0], found[row, own]), "it depends on the other rows"
    assert (found[~mask] == 0).all()


@given(
    st.integers(0, 99), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from(sorted(PARTS.values()))
)
def test_by_parts_keeps_the_sum_and_the_profile(seed: int, counts: list[int], parts: int) -> None:
    values, mask = ragged(seed, counts)
    found = by_parts(values, mask, parts)
    for row, count in enumerate(counts):
        expected = []
        for part in range(parts):
            inside = [at for at in range(count) if at * parts // count == part]
            expected += [float(values[row, inside].mean())] * len(inside)
        torch.testing.assert_close(found[row, :count], torch.tensor(expected))
    torch.testing.assert_close(found.sum(dim=1), (values * mask).sum(dim=1))


def test_even_leaves_nothing_but_the_sum() -> None:
    values, mask = ragged(0, [7, 12])
    found = controlled(values, mask, "even", range(2))
    for row, own in enumerate(mask):
        assert torch.allclose(found[row, own], values[row, own].mean())


def test_what_is_outside_the_mask_stays() -> None:
    values, mask = ragged(0, [3, 5])
    for control in CONTROLS:
        assert torch.equal(controlled(values, mask, control, range(2))[~mask], values[~mask])
    assert controlled(values, mask, "none", range(2)) is values


def test_position_is_of_ten_parts() -> None:
    values, mask = torch.arange(20.0)[None], torch.ones(1, 20, dtype=torch.bool)
    expected = 0.5 + 2.0 * torch.arange(10).repeat_interleave(2)  # of two tokens each
    assert torch.equal(controlled(values, mask, "position", [0])[0], expected)


@pytest.mark.parametrize("signal", [OAR_P, Weights(), Signed()], ids=["importance", "weights", "advantages"])
def test_a_method_is_controlled_by_one_key(signal: CreditSignal) -> None:
    """It is the credit that is controlled, behind the gate where there is one: of the reasoning there, else of all tokens."""
    batch, advantages = random_batch(2, longest=40), torch.tensor([0.3, 0.0, 1.1, -0.1])
    mask = batch.reasoning_mask if signal is OAR_P else batch.completion_mask
    own = assigned(batch, advantages, signal).token_advantages
    for control in ("shuffled", "position", "even"):
        found = assigned(batch, advantages, signal, control=control).token_advantages
        torch.testing.assert_close(found, controlled(own, mask, control, range(4)))
        assert not torch.allclose(found, own)
