"""Parts of a method that a configuration may name: a signal that compares completions, a loss beside the policy's."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from oar.method.importance import CreditInputs

SEEN: list[int] = []  # completions of each call of AgainstTheGroup


@dataclass(frozen=True)
class AgainstTheGroup:
    """A token weighs what its entropy is to the mean entropy of its group, completions of advantage 0 included."""

    gives: ClassVar[Literal["weights"]] = "weights"
    needs_batch: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        SEEN.append(len(inputs.batch))
        assert inputs.scores.forward is None
        mask, groups = inputs.batch.completion_mask, inputs.known_groups()
        weights = inputs.scores.entropy.clone()
        for group in groups.unique():
            own = groups == group
            weights[own] /= inputs.scores.entropy[own][mask[own]].mean()
        return weights


@dataclass(frozen=True)
class Imitation:
    """-strength x logprob of completions that earned more than their group, or of all, from training step `since` on."""

    strength: float = 0.5
    since: int = 0
    of_all: bool = False

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        wanted = ((inputs.known_advantages() > 0) | self.of_all).float() * (inputs.step >= self.since)
        return -self.strength * wanted[:, None] * inputs.scores.logprobs
