"""Controls that any method can be held against: its own numbers, on tokens that did not earn them, or spread over parts."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from oar.common.seeding import generator

PARTS = {"position": 10, "even": 1}  # of a completion, in each of which the control takes the mean


def shuffled(values: Tensor, mask: Tensor, seeds: Sequence[int]) -> Tensor:
    """Values (B, T) permuted among each row's masked tokens, by the row's own seed; 0 elsewhere."""
    counts = mask.sum(dim=1).tolist()
    order = [
        before + torch.randperm(count, generator=generator(seed, "shuffle"))
        for seed, count, before in zip(seeds, counts, accumulate([0, *counts[:-1]]), strict=True)
    ]
    return torch.zeros_like(values).masked_scatter(mask, values[mask][torch.cat(order).to(mask.device)])


def by_parts(values: Tensor, mask: Tensor, parts: int) -> Tensor:
    """Values (B, T) replaced by their mean over the part of the row's masked tokens that they stand in; 0 elsewhere.

    The row's masked tokens are cut into as many `parts` of one length. What a method knows of single tokens is gone; how its
    numbers rise and fall along a completion stays with ten parts, with one nothing but their sum.
    """
    counts = mask.sum(dim=1, keepdim=True)
    part = ((mask.cumsum(dim=1) - 1) * parts // counts.clamp(min=1)).clamp(min=0)
    held = values.masked_fill(~mask, 0.0)
    sums = values.new_zeros(len(values), parts).scatter_add(1, part, held)
    sizes = values.new_zeros(len(values), parts).scatter_add(1, part, mask.to(values.dtype))
    return (sums / sizes.clamp(min=1)).gather(1, part).masked_fill(~mask, 0.0)


def controlled(values: Tensor, mask: Tensor, control: str, seeds: Sequence[int]) -> Tensor:
    """Values (B, T) under `control`, one of `oar.names.CONTROLS`; what is outside the mask stays."""
    if control == "none":
        return values
    replaced = shuffled(values, mask, seeds) if control == "shuffled" else by_parts(values, mask, PARTS[control])
    return torch.where(mask, replaced, values)
