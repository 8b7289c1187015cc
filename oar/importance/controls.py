"""Controls: signals that know nothing of the outcome, to hold OAR against (docs/METHOD.md §4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class UniformImportance:
    """Every token alike: GRPO."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) of ones under the reasoning mask."""
        return inputs.batch.reasoning_mask.float()


@dataclass(frozen=True, slots=True)
class EntropyImportance:
    """The policy's entropy at t."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        return inputs.entropy * inputs.batch.reasoning_mask


@dataclass(frozen=True, slots=True)
class RandomImportance:
    """Uniform noise: the same shape of weights, no information."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in [0, 1)."""
        mask = inputs.batch.reasoning_mask
        return torch.rand(mask.shape, generator=inputs.generator).to(mask.device) * mask
