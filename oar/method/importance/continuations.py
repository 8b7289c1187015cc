"""Advantages from continuations that the policy really drew: VinePPO (arXiv 2410.01679) and SPO's chain (arXiv 2505.23564)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.advantages import whitened
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class ContinuationAdvantages:
    """A_t = V_{k+1} - V_k for the tokens of the segment that begins at cut k, and R - V of the last cut for those of the last.

    V_k is the mean reward of continuations drawn from before the cut (`CreditInputs.values`, which method.continuations asks
    for). `sure`: tokens of a probability not below it have A_t = 0 and count in no mean; null: there are none (VinePPO). Their
    share is made up for, so that with learner.aggregation=token_mean the loss is the mean over the others. `whiten`: the mean
    over the batch's tokens is taken from all and their standard deviation (unbiased) divides them.
    """

    sure: float | None = None
    whiten: bool = True
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True
    needs_continuations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sure is not None and not 0 < self.sure <= 1:
            raise ConfigError(f"sure must be null or above 0 and at most 1, but is {self.sure}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask = inputs.batch.completion_mask
        counted = mask
        if self.sure is not None:
            counted = mask & (inputs.scores.logprobs.detach().exp() < self.sure)
        found = segment_advantages(inputs.known_values(), inputs.known_rewards().float(), mask)
        found = whitened(found, counted) if self.whiten else found
        return torch.where(counted, found * mask.sum() / counted.sum().clamp(min=1), 0.0)


def segment_advantages(values: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """(B, T) from values (B, T), NaN where nothing is cut, and rewards (B,); 0 outside `mask` and before a row's first cut."""
    cut = mask & ~values.isnan()
    segment = cut.cumsum(dim=1)  # of each token, from 1; 0 before the first cut
    cuts = int(segment.max()) if segment.numel() else 0
    # What every state is worth at which a segment begins; behind the last one the reward itself.
    state = rewards[:, None].repeat(1, cuts + 2)
    row = cut.nonzero()[:, 0]
    state[row, segment[cut]] = values[cut]
    gain = state[:, 1:] - state[:, :-1]
    return torch.where(mask & (segment > 0), gain.gather(1, segment), 0.0)
