"""Controls that any method can be held against: its own numbers, on tokens that did not earn them."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from oar.common.seeding import generator

TENTHS = 10  # parts of a completion within which the position control takes the mean


def shuffled(values: Tensor, mask: Tensor, seeds: Sequence[int]) -> Tensor:
    """Values (B, T) permuted among each row's masked tokens, by the row's own seed; 0 elsewhere."""
    counts = mask.sum(dim=1).tolist()
    order = [
        before + torch.randperm(count, generator=generator(seed, "shuffle"))
        for seed, count, before in zip(seeds, counts, accumulate([0, *counts[:-1]]), strict=True)
    ]
    return torch.zeros_like(values).masked_scatter(mask, values[mask][torch.cat(order).to(mask.device)])


def by_position(values: Tensor, mask: Tensor) -> Tensor:
    """Values (B, T) replaced by their mean over the tenth of the row's masked tokens that they stand in; 0 elsewhere.

    What a method knows beyond how its weights rise and fall along a completion is gone; its profile and its sum stay.
    """
    counts = mask.sum(dim=1, keepdim=True)
    tenth = ((mask.cumsum(dim=1) - 1) * TENTHS // counts.clamp(min=1)).clamp(min=0)
    held = values.masked_fill(~mask, 0.0)
    sums = values.new_zeros(len(values), TENTHS).scatter_add(1, tenth, held)
    sizes = values.new_zeros(len(values), TENTHS).scatter_add(1, tenth, mask.to(values.dtype))
    return (sums / sizes.clamp(min=1)).gather(1, tenth).masked_fill(~mask, 0.0)


def controlled(values: Tensor, mask: Tensor, control: str, seeds: Sequence[int]) -> Tensor:
    """Values (B, T) under `control`, one of `oar.names.CONTROLS`; what is outside the mask stays."""
    if control == "none":
        return values
    replaced = shuffled(values, mask, seeds) if control == "shuffled" else by_position(values, mask)
    return torch.where(mask, replaced, values)
