"""The composition of a method: probe and estimator -> gate -> token advantages (docs/METHOD.md §3 to §5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.errors import DataError
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import Scores
from oar.method.gating import Gate
from oar.method.importance.base import CreditInputs, ImportanceEstimator
from oar.method.probes import Probe


@dataclass(frozen=True, slots=True)
class Credit:
    """token_importance (as the gate saw it), token_weights, token_advantages: each (B, T)."""

    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor


def checked_importance(estimator: ImportanceEstimator, inputs: CreditInputs) -> Tensor:
    """What the estimator says, (B, T). Raises DataError where it has another shape or precision; the gate checks the values."""
    found, shape = estimator(inputs), inputs.batch.reasoning_mask.shape
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != torch.float32:
        name = type(estimator).__name__
        came = f"{tuple(found.shape)} in {found.dtype}" if isinstance(found, Tensor) else repr(type(found))
        raise DataError(f"{name} must give importance of shape {tuple(shape)} in torch.float32, but gave {came}.")
    return found


@dataclass(frozen=True, slots=True)
class CreditAssigner:
    """A method under one step's probe: gives each token its share of its completion's advantage, A_{i,t} = w_{i,t} A_i.

    `gate(importance, reasoning_mask)` turns importance (B, T) into weights (B, T), e.g. `gating.make_gate(tau=0.4, ...)`.
    With `times_surprisal` the importance is multiplied by -logprob of the sampled token first: what mattered, where the
    policy took a chance (docs/METHOD.md §9).
    """

    estimator: ImportanceEstimator
    gate: Gate
    probe: Probe
    times_surprisal: bool = False

    def __call__(
        self,
        model: PreTrainedModel,
        batch: CompletionBatch,
        scores: Scores,
        advantages: Tensor,
        *,
        seeds: Sequence[int],
        marks: Mapping[str, Tensor] | None = None,
    ) -> Credit:
        """Of B completions: their `scores`, `advantages` (B,), a seed each, and ground truth (B, T) by name where there is any.

        Two kinds of completions keep weight 1: those without an answer span (the method's fallback to GRPO) and those of
        advantage 0, whose weights change nothing and so are not computed. Raises DataError naming the row where importance is
        negative, NaN or infinite.
        """
        importance = torch.zeros(batch.completion_mask.shape, device=advantages.device)
        weights = torch.ones_like(importance)
        index = (batch.has_answer & (advantages != 0)).nonzero()[:, 0]
        if len(index):
            chosen = CreditInputs(model, batch, self.probe, scores, seeds, marks or {}).rows(index)
            found = checked_importance(self.estimator, chosen)
            if self.times_surprisal:
                found = found * -chosen.scores.logprobs.detach()
            importance[index] = found
            weights[index] = self.gate(found, chosen.batch.reasoning_mask)
        return Credit(importance, weights, advantages[:, None] * weights)
