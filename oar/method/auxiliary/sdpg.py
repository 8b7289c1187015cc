"""SDPG: GRPO, and each token's exact KL from a teacher who knows the answer (arXiv 2606.04036; docs/METHODS.md)."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.auxiliary.distilled import distilled
from oar.method.forward.logprobs import score_completions
from oar.method.importance.base import CreditInputs
from oar.method.importance.privileged import Schedule
from oar.names import CONTEXTS

# K_t from lw = logprob - reference logprob of the sampled token; the authors' names.
REFERENCE_KL: dict[str, Callable[[Tensor], Tensor]] = {
    "urkl": lambda lw: lw.square() / 2,
    "ufkl": lambda lw: (-lw).exp() + lw,
    "rkl": lambda lw: (lw + 1).square() / 2,
    "fkl": lambda lw: (-lw).exp(),
}
LARGEST = 20.0  # nats; a divergence above it has no gradient (released code)


@dataclass(frozen=True, slots=True)
class TeacherDivergence:
    """divergence x schedule(step) x gate x KL(student || teacher) + reference x K_t, over the full vocabulary.

    Both distributions are of logits divided by the sampling temperature (the released code divides the student's alone; at
    temperature 1 it is the same). The gradient flows through the student. `only_better`: the gate is 1 where A > 0, else 0;
    otherwise it is 1. K_t holds the policy near the frozen starting model (REFERENCE_KL); with `reference` 0 none is loaded.
    """

    divergence: float = 1e-3
    reference: float = 1e-3
    reference_kl: str = "urkl"
    only_better: bool = False
    context: str = "answer"
    schedule: Schedule = field(default_factory=Schedule)
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if self.divergence < 0 or self.reference < 0:
            raise ConfigError(
                f"divergence and reference must be 0 or more, but are {self.divergence} and {self.reference}."
            )
        if self.reference_kl not in REFERENCE_KL:
            raise ConfigError(f"reference_kl must be one of {', '.join(REFERENCE_KL)}, but is {self.reference_kl!r}.")
        if self.context not in CONTEXTS:
            raise ConfigError(f"context must be one of {', '.join(CONTEXTS)}, but is {self.context!r}.")

    @property
    def needs_reference(self) -> bool:
        """Whether the starting model is asked for."""
        return self.reference > 0

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        return self._from_teacher(inputs) + self._from_reference(inputs)

    def _from_teacher(self, inputs: CreditInputs) -> Tensor:
        batch, strength = inputs.known_contexts(), self.divergence * self.schedule(inputs.step)
        index = (batch.has_context & ((inputs.known_advantages() > 0) | (not self.only_better))).nonzero()[:, 0]
        loss = torch.zeros(batch.completion_mask.shape, device=index.device)
        if strength == 0 or not len(index):
            return loss
        apart = distilled(inputs.rows(index), kl_from_teacher, self.max_tokens_per_forward)
        return loss.index_put((index,), strength * apart.clamp(max=LARGEST))

    def _from_reference(self, inputs: CreditInputs) -> Tensor:
        if not self.needs_reference:
            return inputs.scores.logprobs.new_zeros(inputs.scores.logprobs.shape)
        with torch.no_grad():
            reference = score_completions(inputs.known_reference(), inputs.batch, temperature=inputs.temperature)
        ratio = inputs.scores.logprobs - reference.logprobs
        return self.reference * REFERENCE_KL[self.reference_kl](ratio) * inputs.batch.completion_mask


def kl_from_teacher(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student || teacher) (n,) of log-probabilities (n, V)."""
    return (student.exp() * (student - teacher)).sum(dim=-1)
