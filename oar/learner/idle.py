"""Completions without a gradient: a few of them are scored, for all of them."""

import torch
from torch import Tensor


def stands_for(idle: Tensor, group_size: int, seed: int) -> Tensor:
    """(B,) how many completions each one's scores stand for: 0 where it is not scored.

    One that has a gradient stands for itself. Of those without, `idle` (B,), one in each group of `group_size` is drawn for all
    of its group: only parity with the sampler and the mean entropy need them, so means weighted by this stay unbiased.
    """
    draws = torch.rand(idle.shape, generator=torch.Generator().manual_seed(seed)).to(idle.device)
    groups = idle.view(-1, group_size)
    drawn = torch.where(groups, draws.view(-1, group_size), -1.0).argmax(dim=1, keepdim=True)
    chosen = torch.zeros_like(groups).scatter_(1, drawn, 1) & groups
    return torch.where(groups, chosen * groups.sum(dim=1, keepdim=True), 1).view(-1).float()
