"""RLSD: a token counts more where it is likelier to one who knows the solution (arXiv 2604.03128; docs/METHODS.md)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.importance.base import CreditInputs
from oar.method.importance.privileged import Schedule, teacher_gap
from oar.names import CONTEXTS


@dataclass(frozen=True, slots=True)
class SelfDistilledWeights:
    """w_t = (1 - s) + s clip(exp(sign(A) (lp_T - lp_S)), 1 - clip, 1 + clip), s = `strength` x schedule(step).

    lp_T: log-probability of the token by the teacher, who is shown `context`; lp_S: by the policy. What agrees with the teacher
    counts more in a completion to be drawn more often, and less in one to be drawn less often; the sign of A never changes.
    Both sides are clipped, as in all released code (the paper's eq. 16 would leave one open). A completion without a context
    keeps weight 1, and so does everything where s is 0, without a forward. `only_negative`: completions of A > 0 keep weight 1;
    `only_reasoning`: tokens outside the reasoning do.
    """

    strength: float = 0.5
    clip: float = 0.2
    context: str = "solution"
    schedule: Schedule = field(default_factory=Schedule)
    only_negative: bool = False
    only_reasoning: bool = False
    max_tokens_per_forward: int = 2048
    gives: ClassVar[Literal["weights"]] = "weights"

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1 or not 0 <= self.clip <= 1:
            raise ConfigError(f"strength and clip must be between 0 and 1, but are {self.strength} and {self.clip}.")
        if self.context not in CONTEXTS:
            raise ConfigError(f"context must be one of {', '.join(CONTEXTS)}, but is {self.context!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T), within 1 - strength x clip and 1 + strength x clip."""
        batch, advantages = inputs.known_contexts(), inputs.known_advantages()
        weights = torch.ones(batch.completion_mask.shape, device=advantages.device)
        strength = self.strength * self.schedule(inputs.step)
        index = (batch.has_context & ((advantages < 0) | (not self.only_negative))).nonzero()[:, 0]
        if strength == 0 or not len(index):
            return weights
        gap = teacher_gap(inputs.rows(index), self.max_tokens_per_forward)
        evidence = (advantages[index].sign()[:, None] * gap).exp().clamp(1 - self.clip, 1 + self.clip)
        mask = (batch.reasoning_mask if self.only_reasoning else batch.completion_mask)[index]
        weights[index] = torch.where(mask, (1 - strength) + strength * evidence, 1.0)
        return weights
