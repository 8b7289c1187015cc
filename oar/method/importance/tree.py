"""Advantages of the edges of a tree of completions: SPO's tree (arXiv 2505.23564; docs/METHODS.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.advantages import group_advantages
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class TreeAdvantages:
    """A_t = V(child) - V(parent) for the tokens of the edge between them; V is the mean reward of a node's leaves.

    The completions of a group are the leaves of a tree, those of a node next to each other: the first `segment` tokens are the
    edges to `branching[0]` nodes, the next ones those to `branching[1]` children of each, and so on; the last edges have all that
    follows. A completion that ends early stands for all leaves that its node would have had. `divide_by_std`: over the
    standard deviation (unbiased) of the parent's children + 1e-8.

    The tokens of an edge that several completions share are counted once, in the first of them, and have A_t = 0 in the others.
    What that and edges of A = 0 leave out is made up for, so that with learner.aggregation=token_mean the loss is the mean over
    the tokens of all other edges.
    """

    branching: Sequence[int] = (2, 2, 2)
    segment: int = 16
    divide_by_std: bool = False
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.branching or min(self.branching) < 2:
            raise ConfigError(f"branching must name 2 children or more at each level, but is {list(self.branching)}.")
        if self.segment < 1:
            raise ConfigError(f"segment must be 1 or more, but is {self.segment}.")

    @property
    def leaves(self) -> int:
        """How many completions a tree has."""
        return prod(self.branching)

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) of whole trees. Raises DataError where completions were not drawn as such."""
        batch, rewards, size = inputs.batch, inputs.known_rewards().float(), self.leaves
        mask = batch.completion_mask
        row, place = (torch.arange(count, device=mask.device) for count in mask.shape)
        level_of = (place // self.segment).clamp(max=len(self.branching) - 1)  # of each place, from 0
        found = torch.zeros(mask.shape, device=mask.device)
        one_tree = torch.tensor(len(rewards) % size == 0, device=mask.device)
        for level, branches in enumerate(self.branching if one_tree else ()):
            size //= branches
            gains = group_advantages(
                rewards.view(-1, size).mean(dim=1), branches, divide_by_std=self.divide_by_std, eps=1e-8
            )
            edge = mask & (level_of == level) & (row % size == 0)[:, None]
            found = torch.where(edge, gains.repeat_interleave(size)[:, None], found)
            shared = torch.where(mask & (level_of <= level), batch.completion_ids, -1).view(-1, size, mask.shape[1])
            one_tree &= (shared == shared[:, :1]).all()
        if not one_tree:
            raise DataError(
                f"This method needs groups of {self.leaves} completions that were drawn as a tree, but was given others: train "
                "with it."
            )
        return found * mask.sum() / (found != 0).sum().clamp(min=1)
