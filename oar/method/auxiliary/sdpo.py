"""SDPO: self-distillation from a teacher who saw a peer's right solution, in place of the policy gradient (arXiv 2601.20802)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from oar.common.errors import ConfigError
from oar.method.auxiliary.distilled import distilled
from oar.method.importance.base import CreditInputs
from oar.names import CONTEXTS


@dataclass(frozen=True, slots=True)
class NoPolicyLoss:
    """A_t = 0: what is learned is the auxiliary loss alone."""

    gives: ClassVar[Literal["advantages"]] = "advantages"

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) of zeros."""
        return torch.zeros(inputs.batch.completion_mask.shape, device=inputs.batch.input_ids.device)


@dataclass(frozen=True, slots=True)
class TopDivergence:
    """min(ratio, ratio_cap) x divergence of student and teacher over the student's `top` tokens and one bucket for all others.

    alpha 0: KL(teacher || student); 1: KL(student || teacher); between them the generalised Jensen-Shannon divergence
    (1 - alpha) KL(S || M) + alpha KL(T || M), M = (1 - alpha) S + alpha T. The ratio, new to old probability of the token, is a
    constant of the gradient. A completion without a context has no loss.
    """

    alpha: float = 0.5
    top: int = 100
    ratio_cap: float = 2.0
    context: str = "peer"
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be between 0 and 1, but is {self.alpha}.")
        if self.top < 1 or self.ratio_cap <= 0:
            raise ConfigError(f"top must be 1 or more and ratio_cap above 0, but are {self.top} and {self.ratio_cap}.")
        if self.context not in CONTEXTS:
            raise ConfigError(f"context must be one of {', '.join(CONTEXTS)}, but is {self.context!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        loss = distilled(inputs, self.divergence, self.max_tokens_per_forward)
        if inputs.old_logprobs is None:
            return loss
        ratio = (inputs.scores.logprobs.detach() - inputs.old_logprobs).exp()
        return loss * ratio.clamp(max=self.ratio_cap)

    def divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        """(n,) of log-probabilities (n, V)."""
        top = student.detach().topk(min(self.top, student.shape[1]), dim=-1).indices
        own, other = (with_tail(logprobs.gather(-1, top)) for logprobs in (student, teacher))
        if self.alpha in (0, 1):
            left, right = (own, other) if self.alpha == 0 else (other, own)
            return kl_div(left, right, reduction="none", log_target=True).sum(dim=-1)
        mixture = torch.logaddexp(own + math.log1p(-self.alpha), other + math.log(self.alpha))
        of_student, of_teacher = (
            kl_div(mixture, one, reduction="none", log_target=True).sum(dim=-1) for one in (own, other)
        )
        return (1 - self.alpha) * of_student + self.alpha * of_teacher


def with_tail(logprobs: Tensor) -> Tensor:
    """Log-probabilities (n, K) of some tokens, and of all others together, (n, K + 1)."""
    held = logprobs.logsumexp(dim=-1, keepdim=True).clamp(max=-1e-7)  # below 0, so that the rest has a logarithm
    return torch.cat([logprobs, (-held.expm1()).log()], dim=-1)
