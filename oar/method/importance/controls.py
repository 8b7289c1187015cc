"""Controls: signals that know nothing of the outcome, signals made from another one, and the ground truth itself.

They are what OAR is held against (docs/METHOD.md §4, §7): where shuffled weights do as well as OAR's own, the gain is not
credit assignment; the marks are the ceiling of what any signal could reach.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.common.seeding import generator
from oar.method.control import shuffled
from oar.method.importance.base import CreditInputs, ImportanceEstimator


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
        return inputs.scores.entropy * inputs.batch.reasoning_mask


@dataclass(frozen=True, slots=True)
class RandomImportance:
    """Uniform noise: the same shape of weights, no information."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in [0, 1)."""
        mask = inputs.batch.reasoning_mask
        # As many draws as there are tokens, so that the width of the batch changes none of them.
        draws = [
            torch.rand(count, generator=generator(seed, "random"))
            for seed, count in zip(inputs.seeds, mask.sum(dim=1).tolist(), strict=True)
        ]
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, torch.cat(draws).to(mask.device))


@dataclass(frozen=True, slots=True)
class PositionImportance:
    """A ramp: the later a token, the more it is worth."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T): k / T for the k-th of T reasoning tokens, so in (0, 1]."""
        mask = inputs.batch.reasoning_mask
        return mask.cumsum(dim=1) * mask / mask.sum(dim=1, keepdim=True).clamp(min=1)


@dataclass(frozen=True, slots=True)
class ShuffledImportance:
    """The importance of another estimator, permuted among the reasoning tokens of each completion.

    The gate sees the same values, so the weights are that estimator's own, on tokens that did not earn them.
    """

    of: ImportanceEstimator

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in the unit of the other estimator."""
        return shuffled(self.of(inputs), inputs.batch.reasoning_mask, inputs.seeds)


@dataclass(frozen=True, slots=True)
class InvertedImportance:
    """The importance of another estimator turned upside down: the score s of the gate becomes 1 - s exactly.

    The gate takes s = log1p(I), min-max over the completion (docs/METHOD.md §5), so log1p(I') = max + min - log1p(I).
    """

    of: ImportanceEstimator

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in the unit of the other estimator, between its least and largest value in the completion."""
        mask, scores = inputs.batch.reasoning_mask, self.of(inputs).log1p()
        low = scores.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
        high = scores.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
        return torch.where(mask, (high + low - scores).expm1().clamp(min=0), 0.0)  # rounding may fall below 0


@dataclass(frozen=True, slots=True)
class MarkedImportance:
    """An oracle: the tokens that the task itself marks, by the mark's name (docs/METHOD.md §7.9)."""

    mark: str

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T): 1 where marked, 0 elsewhere. Raises DataError where the task knows no such marks."""
        found = inputs.known_marks(self.mark, "train on word problems, or choose another method")
        return (found & inputs.batch.reasoning_mask).float()
