"""PRIME: process rewards from a language model that learns outcomes alone (arXiv 2502.01456; docs/METHODS.md)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from oar.common.errors import ConfigError
from oar.method.advantages import whitened
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class ImplicitReward:
    """How the reward model learns: it says sigmoid(beta x sum of q_t) of a completion being right.

    q_t: log-probability of the token by the reward model less that by the starting model. relative_lr: its learning rate, of the
    policy's; max_grad_norm: clipping of its gradient's norm.
    """

    beta: float = 0.05
    relative_lr: float = 2.0
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        if min(self.beta, self.relative_lr, self.max_grad_norm) <= 0:
            raise ConfigError(
                "beta, relative_lr and max_grad_norm must be above 0, but are "
                f"{self.beta}, {self.relative_lr} and {self.max_grad_norm}."
            )

    def loss(self, process_rewards: Tensor, correct: Tensor) -> Tensor:
        """Cross-entropy (B,) of q (B, T), 0 outside the completion, with what the verifier says (B,)."""
        said = self.beta * process_rewards.sum(dim=1)
        return binary_cross_entropy_with_logits(said, correct.to(said.dtype), reduction="none")


@dataclass(frozen=True, slots=True)
class ImplicitRewardAdvantages:
    """A_t = whitened sum over t' >= t of process x q_{t'} and, at the last token, outcome x (right or wrong).

    Both are first compared with the other completions of the group: r n / (n - 1) - (sum of the group's means) / (n - 1), which
    for the outcome is leave-one-out. Whitened: mean 0 and variance 1 over all tokens of the step.
    """

    learned: ImplicitReward
    process: float = 5.0
    outcome: float = 1.0
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask, groups = inputs.batch.completion_mask, inputs.known_groups()
        scored, outcomes = inputs.known_process_rewards(), inputs.known_correct().float()
        lengths = mask.sum(dim=1)
        rewards = self.process * compared(scored, (scored * mask).sum(dim=1) / lengths, groups) * mask
        row = torch.arange(len(rewards), device=rewards.device)
        rewards[row, lengths - 1] += self.outcome * compared(outcomes[:, None], outcomes, groups)[:, 0]
        return whitened(rewards.flip(1).cumsum(dim=1).flip(1), mask)


def compared(rewards: Tensor, means: Tensor, groups: Tensor) -> Tensor:
    """(B, K): r n / (n - 1) - (sum of the group's means) / (n - 1), of rewards (B, K) whose completions have means (B,)."""
    same = (groups[:, None] == groups).to(rewards.dtype)
    others = (same.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return rewards * (others + 1) / others - (same @ means)[:, None] / others
