"""The clipped policy objective, per token, and how tokens are summed up (docs/METHOD.md §1)."""

import torch
from torch import Tensor

from oar.errors import DataError


def loss_scale(completion_mask: Tensor, aggregation: str, max_completion_length: int) -> Tensor:
    """The factor (B, T) of each token's loss, such that the sum over a whole batch is the batch's loss.

    `sequence_mean`: mean over a completion's tokens, then over completions (GRPO); `token_mean`: mean over all tokens
    (DAPO); `constant`: divided by B x max_completion_length (Dr. GRPO). Computed once for the batch, so that
    micro-batches of any size add up to the same gradient. Raises DataError for any other name.
    """
    mask = completion_mask.float()
    if aggregation == "sequence_mean":
        return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / mask.shape[0]
    if aggregation == "token_mean":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "constant":
        return mask / (mask.shape[0] * max_completion_length)
    raise DataError(f"Aggregation must be sequence_mean, token_mean or constant, but is {aggregation!r}.")


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    token_advantages: Tensor,
    scale: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    correction: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of scale x -min(ratio A, clip(ratio, 1 - low, 1 + high) A): a scalar, and sums for the metrics.

    All tensors (B, T); only tokens of positive `scale` count. `correction` (B, T) multiplies each token's policy term
    (`sampler_correction`). With `ref_logprobs` the k3 estimate of KL(policy || reference) is added, times `kl_coef`.
    Metrics are sums over tokens: divide them by the number of tokens.
    """
    mask = scale > 0
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    per_token = -torch.minimum(ratio * token_advantages, clipped * token_advantages)
    if correction is not None:
        per_token = per_token * correction
    if ref_logprobs is not None:
        log_ref_ratio = torch.where(mask, ref_logprobs - logprobs, 0.0)
        per_token = per_token + kl_coef * (log_ref_ratio.exp() - log_ref_ratio - 1)
    loss = (per_token * scale).sum()
    was_clipped = clipped_tokens(ratio, token_advantages, clip_eps_low, clip_eps_high) & mask
    approx_kl = (ratio - 1 - log_ratio) * mask
    return loss, {"clipped": was_clipped.sum().detach(), "approx_kl": approx_kl.sum().detach()}


def clipped_tokens(ratio: Tensor, token_advantages: Tensor, clip_eps_low: float, clip_eps_high: float) -> Tensor:
    """Which tokens (B, T) have no gradient, because their ratio has gone past the clip in their advantage's direction."""
    clipped = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return clipped * token_advantages < ratio * token_advantages


def sampler_correction(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling for the sampler/learner mismatch: min(exp(old - sampler), cap), (B, T)."""
    return (old_logprobs - sampler_logprobs).exp().clamp(max=cap)
