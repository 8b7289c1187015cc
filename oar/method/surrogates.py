"""What may stand in the clipped objective for a token's own log ratio and advantage (docs/METHODS.md)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.common.errors import ConfigError

TRACES = ("recent", "both")


@dataclass(frozen=True, slots=True)
class DualClip:
    """A second clip (arXiv 1912.09729): where A < 0 the ratio counts for no more than `largest`, and beyond has no gradient.

    min(max(-r A, -clip(r) A), -largest A), the form in which it is usually written, is the objective of this ratio. Off the
    policy alone, by more than the first clip, does it change anything.
    """

    largest: float = 3.0

    def __post_init__(self) -> None:
        if self.largest <= 1:
            raise ConfigError(f"largest must be above 1, but is {self.largest}.")

    def __call__(self, log_ratio: Tensor, token_advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) each."""
        bounded = log_ratio.clamp(max=math.log(self.largest))
        return torch.where(token_advantages < 0, bounded, log_ratio), token_advantages


@dataclass(frozen=True, slots=True)
class EligibilityTrace:
    """GRPO-lambda (arXiv 2510.00194): the ratio of token t is that of all tokens up to it, the older the less.

    LR_t = sum over l = 0..t of tr(t, l) (logprob - old_logprob)_{t-l}, t from 0, with d = `decay` = gamma x lambda:
    `recent`: tr = d^l; `both`: tr = max(d^l, d^(t-l)), so that the first tokens count too; never below `least`.
    On the policy the gradient of token j has the weight sum over t >= j of tr(t, t - j): early tokens gain.
    `least_advantage`: advantages below it are raised to it, since summed negative ones destabilise (paper).
    """

    decay: float = 0.99
    trace: str = "recent"
    least: float = 0.0
    least_advantage: float | None = -0.1

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1 or not 0 <= self.least <= 1:
            raise ConfigError(f"decay and least must be between 0 and 1, but are {self.decay} and {self.least}.")
        if self.trace not in TRACES:
            raise ConfigError(f"trace must be one of {', '.join(TRACES)}, but is {self.trace!r}.")

    def __call__(self, log_ratio: Tensor, token_advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) each."""
        traced = torch.where(mask, log_ratio @ self.weights(log_ratio.shape[1]).to(log_ratio).T, 0.0)
        if self.least_advantage is not None:
            token_advantages = token_advantages.clamp(min=self.least_advantage)
        return traced, token_advantages

    def weights(self, length: int) -> Tensor:
        """(T, T): what the log ratio of token j (column) weighs in that of token t (row), 0 above the diagonal."""
        weight = decayed(length, self.decay)
        if self.trace == "both":
            weight = torch.maximum(weight, self.decay ** torch.arange(length).double()[None, :])
        return weight.clamp(min=self.least).fill_diagonal_(1.0).tril()


@dataclass(frozen=True, slots=True)
class FutureKL:
    """FIPO (arXiv 2603.19835): a token whose future has become likelier since the rollout has a larger advantage.

    f_t = clip(exp F_t, 1 - low, 1 + high) and A_t = f_t A, with F_t = sum over k >= t of 2^(-(k - t) / half_life) (logprob -
    old_logprob)_k, a constant of the gradient. Tokens of A < 0 whose own ratio is above `safe_ratio` have f_t of at most 1. Those
    of a ratio above `outlier_ratio` are left out of all sums; null: none. The first update after a rollout has F = 0, f = 1.
    """

    half_life: float = 32.0
    low: float = 0.0
    high: float = 0.2
    safe_ratio: float = 4.0
    outlier_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.half_life <= 0 or not 0 <= self.low <= 1 or self.high < 0:
            raise ConfigError(
                "half_life must be above 0, low between 0 and 1 and high 0 or more, but they are "
                f"{self.half_life}, {self.low} and {self.high}."
            )

    def __call__(self, log_ratio: Tensor, token_advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) each; the ratio stays."""
        constant = torch.where(mask, log_ratio.detach(), 0.0)
        ratio = constant.exp()
        counted = constant if self.outlier_ratio is None else constant.masked_fill(ratio > self.outlier_ratio, 0.0)
        future = counted @ decayed(log_ratio.shape[1], 2 ** (-1 / self.half_life)).to(counted)
        influence = future.exp().clamp(1 - self.low, 1 + self.high)
        runaway = (token_advantages < 0) & (ratio > self.safe_ratio)
        return log_ratio, token_advantages * torch.where(runaway, influence.clamp(max=1.0), influence)


def decayed(length: int, decay: float) -> Tensor:
    """(T, T) in float64: decay^(row - column), 0 above the diagonal."""
    position = torch.arange(length)
    age = position[:, None] - position[None, :]
    return (decay ** age.clamp(min=0).double()).tril()
