"""A reward for each token that those of completions add up from, and advantages without the noise of the other tokens.

A completion's reward is split over its tokens by regression, as in RUDDER (arXiv 1806.07857); what the other tokens of a
completion are worth is then subtracted from the advantage of a token, as a trajectory-wise control variate (arXiv 1908.03263).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.common.seeding import generator
from oar.method.advantages import centred
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class RewardHead:
    """How the gain of a token is learned: what it is worth more than the policy's tokens at its place are on average.

    gain = surprise^T slope [1, state]. Surprise (C,): the token's code less the mean code under the policy; a token's code is a
    fixed random vector. State (H,): the starting model's last hidden state that the token is drawn from, so that an old example
    says the same for ever. The slope (C, H + 1) is that of a ridge regression: what completions earned, on what surprise and
    state multiply to, summed over a completion; both compared within its group, over the last `memory` completions. States are
    whitened first. `ridge`: of the mean size of a completion, and of the mean variance of a state's direction.
    """

    codes: int = 64
    memory: int = 512
    ridge: float = 0.1

    def __post_init__(self) -> None:
        if min(self.codes, self.memory) < 1 or self.ridge <= 0:
            raise ConfigError(
                "codes and memory must be 1 or more, and ridge above 0, but are "
                f"{self.codes}, {self.memory} and {self.ridge}."
            )

    def token_codes(self, vocabulary: int, device: torch.device) -> Tensor:
        """(V, C), always the same, of mean length 1."""
        drawn = torch.randn(vocabulary, self.codes, generator=generator(0, "token codes"))
        return (drawn / self.codes**0.5).to(device)

    def whitening(self, moments: Tensor) -> Tensor:
        """(H + 1, H + 1), which whitens [1, state] from the right. moments: the sum of [1, state] [1, state]^T, in float64."""
        mean = moments[0, 1:] / moments[0, 0]
        spread, directions = torch.linalg.eigh(moments[1:, 1:] / moments[0, 0] - mean[:, None] * mean)
        floor = self.ridge * spread.mean() + torch.finfo(spread.dtype).tiny
        white = directions * (spread.clamp(min=0) + floor).rsqrt() @ directions.T
        found = torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
        found[1:, 1:], found[0, 1:] = white, -mean @ white
        return found

    def slope(self, changes: Tensor, rewards: Tensor, groups: Tensor, moments: Tensor) -> Tensor:
        """(C, H + 1) from N completions: changes (N, C, H + 1), the sums of surprise [1, state]^T; rewards and groups (N,)."""
        whitening = self.whitening(moments).to(changes.dtype)
        told = centred((changes @ whitening).flatten(1), groups)
        alike = (told @ told.T).double()  # (N, N): there are fewer completions than numbers in the slope
        size = self.ridge * alike.diagonal().mean() + torch.finfo(torch.float32).tiny
        eye = torch.eye(len(alike), dtype=alike.dtype, device=alike.device)
        shares = torch.linalg.solve(alike + size * eye, centred(rewards.double(), groups))
        return (shares.to(told.dtype) @ told).view_as(changes[0]) @ whitening.T

    def trust(self, foretold: Tensor) -> Tensor:
        """(), 0 to 1: how much of a gain is taken. foretold (2,): over earlier completions, of foretold x real and foretold^2."""
        return (foretold[0] / foretold[1].clamp(min=torch.finfo(foretold.dtype).tiny)).clamp(0, 1)


@dataclass(frozen=True, slots=True)
class RewardHeadAdvantages:
    """A_t = R - sum of the gains of the other tokens, less the mean of the group's others; in units of its root mean square.

    Under the policy a token's gain is 0 on average, whatever came before it, so before the division the gradient is the same on
    average whatever the gains are; the better they are, the less it varies. The mean square is over all tokens of the step. Where
    gains are 0, A_t is R less the group's mean. Where no group's rewards differ, nothing is learned.
    """

    learned: RewardHead
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask, groups, rewards = inputs.batch.completion_mask, inputs.known_groups(), inputs.known_rewards().float()
        gains = inputs.known_process_rewards() * mask
        # The mean of equal rewards may differ from them in the last bit.
        differ = centred(rewards, groups).abs().max() > 1e-6
        found = (freed_of_others(rewards, gains, groups) * differ).masked_fill(~mask, 0.0)
        return found / (found.square().sum() / mask.sum()).sqrt().clamp(min=1e-6)


def freed_of_others(rewards: Tensor, gains: Tensor, groups: Tensor) -> Tensor:
    """(B, T): rewards (B,) less the gains (B, T) of the other tokens, less the mean of the group's other completions.

    Times 1 - 1/n, n the size of the group, so that without gains it is the reward less the group's mean.
    """
    size = (groups[:, None] == groups).sum(dim=1, keepdim=True)
    # The group's mean holds 1/n of the completion's own gains, and so its own token's too.
    return centred(rewards - gains.sum(dim=1), groups)[:, None] + gains * (1 - 1 / size)
