"""The composition of a method: estimator -> gate -> token advantages (docs/METHOD.md §4 and §5)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.gating import weight_metrics
from oar.importance.base import CreditInputs, ImportanceEstimator

Gate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Credit:
    """token_importance, token_weights, token_advantages: each (B, T); and the step's diagnostics of them."""

    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor
    metrics: dict[str, float]


def assign_credit(inputs: CreditInputs, advantages: Tensor, estimator: ImportanceEstimator, gate: Gate) -> Credit:
    """Give each token its share of its completion's advantage (B,): A_{i,t} = w_{i,t} A_i.

    `gate(importance, reasoning_mask)` turns importance (B, T) into weights (B, T), e.g. `bilevel_weights` with its
    parameters bound. Two kinds of completions keep weight 1: those without an answer span (the method's fallback to
    GRPO, counted in `fallback_share`) and those of advantage 0, whose weights change nothing and so are not computed.
    """
    batch = inputs.batch
    scored = batch.has_answer & (advantages != 0)
    importance = torch.zeros(batch.completion_mask.shape, device=advantages.device)
    weights = torch.ones_like(importance)
    index = scored.nonzero()[:, 0]
    if len(index):
        chosen = inputs.rows(index)
        importance[index] = estimator(chosen)
        weights[index] = gate(importance[index], chosen.batch.reasoning_mask)
    metrics = {
        f"weights/{name}": value for name, value in weight_metrics(weights[index], batch.reasoning_mask[index]).items()
    }
    metrics["probe/fallback_share"] = float((~batch.has_answer).float().mean())
    return Credit(importance, weights, advantages[:, None] * weights, metrics)
