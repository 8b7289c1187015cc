"""The composition of a method: estimator -> gate -> token advantages (docs/METHOD.md §4 and §5)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.method.importance.base import CreditInputs, ImportanceEstimator

Gate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Credit:
    """token_importance (as the gate saw it), token_weights, token_advantages: each (B, T)."""

    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor


def assign_credit(
    inputs: CreditInputs,
    advantages: Tensor,
    estimator: ImportanceEstimator,
    gate: Gate,
    *,
    times_surprisal: bool = False,
) -> Credit:
    """Give each token its share of its completion's advantage (B,): A_{i,t} = w_{i,t} A_i.

    `gate(importance, reasoning_mask)` turns importance (B, T) into weights (B, T), e.g. `bilevel_weights` with its
    parameters bound. With `times_surprisal` the importance is multiplied by -logprob of the sampled token first: what
    mattered, where the policy took a chance (docs/METHOD.md §9). Two kinds of completions keep weight 1: those without an
    answer span (the method's fallback to GRPO) and those of advantage 0, whose weights change nothing and so are not
    computed. Raises DataError naming the row where importance is negative, NaN or infinite.
    """
    batch = inputs.batch
    importance = torch.zeros(batch.completion_mask.shape, device=advantages.device)
    weights = torch.ones_like(importance)
    index = (batch.has_answer & (advantages != 0)).nonzero()[:, 0]
    if len(index):
        chosen = inputs.rows(index)
        found = estimator(chosen)
        if times_surprisal:
            found = found * -chosen.scores.logprobs.detach()
        importance[index] = found
        weights[index] = gate(found, chosen.batch.reasoning_mask)
    return Credit(importance, weights, advantages[:, None] * weights)
