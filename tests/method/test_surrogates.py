"""What stands in the clipped objective for ratio and advantage: sums by hand, and the gradient where it is known."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.losses import Surrogate, loss_scale, policy_loss
from oar.method.surrogates import EligibilityTrace, FutureKL

MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
ADVANTAGES = torch.tensor([0.7, -0.05])[:, None].expand(2, 6)


def log_ratios(scale: float = 0.1) -> Tensor:
    return torch.where(MASK, scale * torch.randn(2, 6, generator=torch.Generator().manual_seed(0)), 0.0)


def recent(age: int, place: int) -> float:
    return 0.8**age


def both(age: int, place: int) -> float:
    return max(0.8**age, 0.8**place)


@pytest.mark.parametrize(
    ("trace", "least", "weight"),
    [
        ("recent", 0.0, recent),
        ("both", 0.0, both),
        ("recent", 0.7, lambda age, place: max(recent(age, place), 0.7)),
        ("both", 0.7, lambda age, place: max(both(age, place), 0.7)),
    ],
)
def test_a_trace_is_a_decaying_sum_over_the_tokens_before(
    trace: str, least: float, weight: Callable[[int, int], float]
) -> None:
    ratios = log_ratios()
    found, _ = EligibilityTrace(decay=0.8, trace=trace, least=least)(ratios, ADVANTAGES, MASK)
    for row in range(2):
        for t in range(6):
            parts = [(1.0 if age == 0 else weight(age, t - age)) * ratios[row, t - age] for age in range(t + 1)]
            assert float(found[row, t]) == pytest.approx(float(sum(parts)) if MASK[row, t] else 0.0, abs=1e-6)


def loss_gradient(surrogate: Surrogate | None, advantages: Tensor, old_shift: Tensor | None = None) -> Tensor:
    """Of the loss with respect to each token's logprob."""
    logprobs = torch.full((2, 6), -1.0, requires_grad=True)
    old = logprobs.detach() - (torch.zeros(2, 6) if old_shift is None else old_shift)
    loss, _ = policy_loss(
        logprobs,
        old,
        advantages,
        loss_scale(MASK, "sequence_mean", 6),
        clip_eps_low=0.2,
        clip_eps_high=0.2,
        surrogate=surrogate,
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return gradient


def test_on_the_policy_a_trace_gives_early_tokens_the_sum_of_what_follows() -> None:
    plain = loss_gradient(None, ADVANTAGES)
    found = loss_gradient(EligibilityTrace(decay=0.8), ADVANTAGES)
    for row, length in ((0, 6), (1, 4)):
        for at in range(length):
            expected = sum(0.8**age for age in range(length - at))
            assert float(found[row, at] / plain[row, at]) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(loss_gradient(EligibilityTrace(decay=0.0), ADVANTAGES), plain)


def test_low_advantages_are_raised_where_a_bound_is_set() -> None:
    low = torch.tensor([0.7, -2.0])[:, None].expand(2, 6)
    _, found = EligibilityTrace()(log_ratios(), low, MASK)
    torch.testing.assert_close(found, torch.tensor([0.7, -0.1])[:, None].expand(2, 6))
    _, kept = EligibilityTrace(least_advantage=None)(log_ratios(), low, MASK)
    assert torch.equal(kept, low)


def test_the_future_decides_the_advantage() -> None:
    ratios, surrogate = log_ratios(0.3), FutureKL(half_life=2.0, low=0.1, high=0.15)
    same, found = surrogate(ratios, ADVANTAGES, MASK)
    assert same is ratios
    seen = set()
    for row in range(2):
        for t in range(6):
            future = sum(0.5 ** ((k - t) / 2) * float(ratios[row, k]) for k in range(t, 6) if MASK[row, k])
            influence = min(max(torch.tensor(future).exp().item(), 0.9), 1.15)
            seen.add(influence)
            assert float(found[row, t]) == pytest.approx(influence * float(ADVANTAGES[row, t]), rel=1e-5)
    assert {0.9, 1.15} < seen, "the example should be clipped on both sides, and not everywhere"
    _, high_only = FutureKL(half_life=2.0, high=0.15)(ratios, ADVANTAGES, MASK)
    torch.testing.assert_close(
        high_only, torch.where(ADVANTAGES > 0, found.maximum(ADVANTAGES), found.minimum(ADVANTAGES))
    )


def test_runaway_tokens_of_negative_advantage_are_not_reinforced_and_outliers_not_counted() -> None:
    ratios = torch.zeros(2, 6)
    ratios[:, 2], ratios[:, 4] = torch.tensor(5.0).log(), torch.tensor(11.0).log()
    advantages = torch.tensor([1.0, -1.0])[:, None].expand(2, 6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    _, found = FutureKL(half_life=1e6)(ratios, advantages, mask)
    assert found[0, :5].tolist() == pytest.approx([1.2] * 5)
    assert found[1].tolist() == pytest.approx([-1.2, -1.2, -1.0, -1.2, -1.0, -1.0])
    _, found = FutureKL(half_life=1e6, outlier_ratio=10.0)(ratios, advantages, mask)
    assert found[0].tolist() == pytest.approx([1.2] * 3 + [1.0] * 3)


def test_the_first_update_after_a_rollout_is_grpo() -> None:
    assert torch.equal(loss_gradient(FutureKL(), ADVANTAGES), loss_gradient(None, ADVANTAGES))
    assert not torch.equal(
        loss_gradient(FutureKL(), ADVANTAGES, log_ratios()), loss_gradient(None, ADVANTAGES, log_ratios())
    )


@pytest.mark.parametrize(
    ("surrogate", "settings"),
    [
        (EligibilityTrace, {"decay": 1.5}),
        (EligibilityTrace, {"least": -0.1}),
        (EligibilityTrace, {"trace": "old"}),
        (FutureKL, {"half_life": 0.0}),
        (FutureKL, {"low": 1.5}),
        (FutureKL, {"high": -0.1}),
    ],
)
def test_settings_that_cannot_be_are_refused(surrogate: type, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        surrogate(**settings)


@pytest.mark.parametrize("surrogate", [EligibilityTrace(decay=0.9), FutureKL()], ids=["trace", "future"])
def test_padding_and_other_rows_change_nothing(surrogate: Surrogate) -> None:
    ratios = log_ratios()
    whole = surrogate(ratios, ADVANTAGES, MASK)
    alone = surrogate(ratios[1:, :4], ADVANTAGES[1:, :4], MASK[1:, :4])
    for one, other in zip(whole, alone, strict=True):
        torch.testing.assert_close(one[1:, :4], other)
