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
        position = torch.arange(length)
        age = position[:, None] - position[None, :]
        weight = self.decay ** age.clamp(min=0).double()
        if self.trace == "both":
            weight = torch.maximum(weight, self.decay ** position.double()[None, :].expand_as(weight))
        weight = torch.where(age == 0, 1.0, weight.clamp(min=self.least))
        return torch.where(age >= 0, weight, 0.0)
