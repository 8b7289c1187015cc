"""Weights from the policy's entropy: the 80/20 mask (arXiv 2506.01939) and an entropy bonus (arXiv 2506.14758)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.importance.base import CreditInputs

DENOMINATORS = ("all", "kept")


@dataclass(frozen=True, slots=True)
class HighEntropyWeights:
    """1 for the `share` of all tokens of the batch whose entropy is largest, 0 for the others.

    Kept is what is at least the (1 - share)-quantile over all completions, those without an advantage included. `denominator`:
    what the loss divides by. `all`: all tokens, as if the others had no loss (TRL). `kept`: the kept ones, so that weights are
    tokens / kept tokens instead of 1; with learner.aggregation=token_mean the loss is then the mean over kept tokens.
    """

    share: float = 0.2
    denominator: str = "all"
    gives: ClassVar[Literal["weights"]] = "weights"
    needs_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, but is {self.share}.")
        if self.denominator not in DENOMINATORS:
            raise ConfigError(f"denominator must be one of {', '.join(DENOMINATORS)}, but is {self.denominator!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask, entropy = inputs.batch.completion_mask, inputs.scores.entropy
        ordered = entropy[mask].sort().values  # torch.quantile refuses more than 2^24 values
        position = (1 - self.share) * (len(ordered) - 1)
        lower = int(position)
        upper = min(lower + 1, len(ordered) - 1)
        kept = mask & (entropy >= torch.lerp(ordered[lower], ordered[upper], position - lower))
        return kept.float() * (mask.sum() / kept.sum() if self.denominator == "kept" else 1.0)


@dataclass(frozen=True, slots=True)
class EntropyBonusWeights:
    """A_t = A + min(strength H_t, |A| / bound), as a weight: with a bound of 1 or more A_t never has another sign than A.

    So an uncertain token is rewarded more where A > 0 and blamed less where A < 0. H_t is a constant of the loss.
    """

    strength: float = 0.4
    bound: float = 2.0
    gives: ClassVar[Literal["weights"]] = "weights"

    def __post_init__(self) -> None:
        if self.strength < 0 or self.bound < 1:
            raise ConfigError(
                f"strength must be 0 or more and bound 1 or more, but they are {self.strength} and {self.bound}."
            )

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        advantages = inputs.known_advantages()[:, None]
        bonus = (self.strength * inputs.scores.entropy / advantages.abs()).clamp(max=1 / self.bound)
        return torch.where(inputs.batch.completion_mask & (advantages != 0), 1 + advantages.sign() * bonus, 1.0)
