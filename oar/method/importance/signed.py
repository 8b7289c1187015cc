"""OAR with a sign: how far a token moves the *right* answer, and in which direction (ours; docs/METHODS.md).

s_t = log p(gold | clean) - log p(gold | t changed), gold the right answer behind the completion's own reasoning and marker. A
token with s_t > 0 made the right answer likelier, one with s_t < 0 less likely. Importance as the paper has it, KL(P || P^(t)),
cannot tell these two apart, so a wrong completion's good steps are blamed as much as its mistake.

A signal that is `bounded` has in place of log p how many tokens of the right answer are expected to be right: the sum of their
probabilities.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.importance.base import CreditInputs
from oar.method.importance.clean import clean_passes, outcome_gradients
from oar.method.importance.perturbation import PerturbationImportance
from oar.method.probes import GoldProbe, GoldTokensProbe


class SignedSignal(Protocol):
    """s_t in nats, or in tokens; needs the right answer, and an answer span of every completion."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, 0 outside the reasoning mask."""
        ...


@dataclass(frozen=True, slots=True)
class CounterfactualDrop:
    """s_t by counterfactuals, as `of` runs them: exact, or by a window and routes (its budget does not apply)."""

    of: PerturbationImportance
    bounded: bool = False
    reads_gold: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats, or in tokens."""
        return self.of.measure(towards_gold(inputs, self.bounded), inputs.batch.reasoning_mask)


@dataclass(frozen=True, slots=True)
class GradientDrop:
    """s_t to first order: <d log p(gold) / d e_t, e_t - e_0>, without noise, in one backward.

    baseline: what e_0 is: `pad`, the embedding that a counterfactual would put there, or `zero` (gradient times input).
    """

    baseline: str = "pad"
    max_tokens_per_forward: int = 2048
    reads_gold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.baseline not in ("pad", "zero"):
            raise ConfigError(f"baseline must be pad or zero, but is {self.baseline!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        inputs = towards_gold(inputs)
        drop = torch.zeros(inputs.batch.reasoning_mask.shape, device=inputs.batch.input_ids.device)
        pad_id = torch.full((1,), inputs.batch.pad_id, device=drop.device)
        pad = inputs.model.get_input_embeddings()(pad_id).detach()
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=True):
            embeddings = clean.forward.embeddings
            (gradient,) = outcome_gradients(inputs, clean, [embeddings])
            away = embeddings.detach() - pad if self.baseline == "pad" else embeddings.detach()
            slope = (gradient.float() * away.float()).sum(dim=-1)
            row = torch.arange(len(clean.completions), device=slope.device)[:, None]
            drop[clean.completions] = clean.forward.packing.at(slope, row, clean.shown.reasoning_positions)
        return drop * inputs.batch.reasoning_mask


@dataclass(frozen=True, slots=True)
class SignMatchedImportance:
    """I_t = max(0, sign(A) s_t): the gate sees what helped in a completion to be drawn more often, else what harmed."""

    of: SignedSignal

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        return (self.of(inputs) * inputs.known_advantages().sign()[:, None]).clamp(min=0)


@dataclass(frozen=True, slots=True)
class SignedAdvantages:
    """A_t = scale x s_t + outcome x A for reasoning tokens: a group that is all wrong teaches as well.

    Without `outcome` no group is needed; with it a token to which s_t gives nothing still shares in the reward.
    Tokens outside the reasoning, and completions without an answer span, keep A: format and answer are learned as in GRPO.
    """

    of: SignedSignal
    scale: float = 1.0
    outcome: float = 0.0
    gives: ClassVar[Literal["advantages"]] = "advantages"

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        advantages = inputs.known_advantages()[:, None].expand(inputs.batch.completion_mask.shape).clone()
        index = inputs.batch.has_answer.nonzero()[:, 0]
        if len(index):
            reasoning = inputs.batch.reasoning_mask[index]
            drop = self.scale * self.of(inputs.rows(index))
            advantages[index] = torch.where(reasoning, drop + self.outcome * advantages[index], advantages[index])
        return advantages


def towards_gold(inputs: CreditInputs, bounded: bool = False) -> CreditInputs:
    """The same completions under a probe of the right answer. Raises DataError where a problem's is not known."""
    if not inputs.batch.gold_mask.any(dim=1).all():
        raise DataError(
            "Signed credit needs the right answer of every problem in tokens, but one has none: choose another method."
        )
    return replace(inputs, probe=GoldTokensProbe() if bounded else GoldProbe())
