"""A value head on the policy's own states, and the advantages that its values give (PPO's critic, arXiv 1707.06347)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.advantages import whitened
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class ValueHead:
    """How a state's value is learned: by ridge regression of rewards on the policy's last hidden states, in closed form.

    Each token is an example: the state that predicts it, and what its completion earned. The value is the mean reward, plus what
    the state's distance from the mean state says. `memory`: what an example counts after each step, of what it counted before;
    `ridge`: added to the variance of each direction, of the mean variance.
    """

    memory: float = 0.95
    ridge: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.memory <= 1 or self.ridge <= 0:
            raise ConfigError(
                f"memory must be above 0 and at most 1, and ridge above 0, but are {self.memory} and {self.ridge}."
            )

    def nothing(self, width: int, device: torch.device) -> Tensor:
        """The sums before the first example: (H + 2, H + 2) in float64, of states of width H."""
        return torch.zeros(width + 2, width + 2, dtype=torch.float64, device=device)

    def sums(self, states: Tensor, rewards: Tensor) -> Tensor:
        """(H + 2, H + 2): what states (N, H) and rewards (N,) sum to, as products of all pairs of [1, state, reward]."""
        examples = torch.column_stack([torch.ones_like(rewards), states, rewards]).double()
        return examples.T @ examples

    def solved(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The slope (H,) of values and their constant (): both 0 where nothing has been seen."""
        seen = sums[0, 0].clamp(min=1)
        means = sums[0, 1:] / seen
        spread = sums[1:, 1:] / seen - means[:, None] * means
        covariance, toward = spread[:-1, :-1], spread[:-1, -1]
        size = self.ridge * covariance.diagonal().mean()
        eye = torch.eye(len(toward), dtype=sums.dtype, device=sums.device)
        slope = torch.linalg.solve(covariance + (size + torch.finfo(sums.dtype).tiny) * eye, toward)
        return slope, means[-1] - means[:-1] @ slope


@dataclass(frozen=True, slots=True)
class ValueHeadAdvantages:
    """A_t = sum over k >= 0 of decay^k d_{t+k}, d_t = V_{t+1} - V_t: generalised advantages (arXiv 1506.02438), undiscounted.

    V_t is the value of the state that token t is drawn from; behind the last token it is the reward. With `decay` 1 the sum is
    R - V_t, which credits all tokens by the outcome; with 0 it is d_t, by what the token itself changed. Whitened: mean 0 and
    variance 1 over all tokens of the step.
    """

    learned: ValueHead
    decay: float = 0.95
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay must be between 0 and 1, but is {self.decay}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask, rewards = inputs.batch.completion_mask, inputs.known_rewards().float()
        return whitened(generalised_advantages(inputs.known_state_values(), rewards, mask, self.decay), mask)


def generalised_advantages(values: Tensor, rewards: Tensor, mask: Tensor, decay: float) -> Tensor:
    """(B, T) from values (B, T) of the states before the tokens under `mask`, and rewards (B,); 0 outside `mask`."""
    found, following, later = torch.zeros_like(values), rewards, torch.zeros_like(rewards)
    for token in reversed(range(values.shape[1])):
        inside = mask[:, token]
        advantage = following - values[:, token] + decay * later
        later = torch.where(inside, advantage, later)
        following = torch.where(inside, values[:, token], following)
        found[:, token] = torch.where(inside, advantage, 0.0)
    return found
