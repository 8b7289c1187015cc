"""The clipped policy objective, per token, and how tokens are summed up (docs/METHOD.md §1)."""

from typing import Protocol

import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.names import AGGREGATIONS


class Surrogate(Protocol):
    """What stands in the clipped objective for each token's own log ratio and advantage."""

    def __call__(self, log_ratio: Tensor, token_advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Both (B, T), from both (B, T); `log_ratio` has a graph and is 0 outside `mask`, the tokens that are in the loss."""
        ...


def loss_scale(completion_mask: Tensor, aggregation: str, max_completion_length: int) -> Tensor:
    """The factor (B, T) of each token's loss, such that the sum over a whole batch is the batch's loss.

    `sequence_mean`: mean over a completion's tokens, then over completions (GRPO); `token_mean`: mean over all tokens
    (DAPO); `constant`: divided by B x max_completion_length (Dr. GRPO). A completion that has no token in the mask is
    in no normaliser either: the loss is what it would be without it. Computed once for the batch, so that
    micro-batches of any size add up to the same gradient. Raises DataError for any other name.
    """
    mask = completion_mask.float()
    completions = mask.any(dim=1).sum().clamp(min=1)
    if aggregation == "sequence_mean":
        return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / completions
    if aggregation == "token_mean":
        return mask / mask.sum().clamp(min=1)
    if aggregation == "constant":
        return mask / (completions * max_completion_length)
    raise DataError(f"Aggregation must be one of {', '.join(AGGREGATIONS)}, but is {aggregation!r}.")


def policy_log_ratio(token_log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """Log of the ratio that multiplies each token's advantage, (B, T), from logprobs - old_logprobs (B, T), 0 outside `mask`.

    `token`: the token's own ratio (GRPO). `sequence`: GSPO (arXiv 2507.18071), whose ratio is the geometric mean over the
    completion's tokens, s = (pi(y) / pi_old(y))^(1/|y|), here in the form that the paper calls GSPO-token,
        s_t = sg[s] x pi(y_t) / sg[pi(y_t)]    (sg: held constant in the gradient):
    each token has the value s and the gradient of its own log-probability.

    Why this form. In GSPO itself the gradient flows through s, which is one number for the completion, so that of
    s x mean_t(A_t) is s x mean_t(A_t) / |y| for every token: only the mean of the token advantages would count, and weights
    of mean 1 would change nothing at all. In GSPO-token, token t of an unclipped completion gets s A_t / |y|. With equal
    A_t the two agree in value, clipping and gradient; with A_t = w_t A, w_t > 0 of mean 1, the value is still GSPO's
    (under `sequence_mean`), a completion is still clipped as a whole, since all A_t have the sign of A, and the weights
    share out its gradient.
    """
    if level == "token":
        return token_log_ratio
    if level == "sequence":
        constant = token_log_ratio.detach()
        mean = constant.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(mask, mean + (token_log_ratio - constant), 0.0)
    raise DataError(f"The ratio must be of a token or of a sequence, but is of a {level!r}.")


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    token_advantages: Tensor,
    scale: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    ratio_level: str = "token",
    surrogate: Surrogate | None = None,
    auxiliary: Tensor | None = None,
    correction: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of scale x -min(ratio A, clip(ratio, 1 - low, 1 + high) A): a scalar, and sums for the metrics.

    All tensors (B, T); only tokens of positive `scale` count. `ratio_level`: whose ratio it is (`policy_log_ratio`).
    `surrogate` puts other log ratios and advantages in their place first. `auxiliary` (B, T) is a loss per token that is
    added (`oar.method.auxiliary`). `correction` (B, T) multiplies each token's policy term (`sampler_correction`). With
    `ref_logprobs` the k3 estimate of KL(policy || reference) is added, times `kl_coef`.
    Metrics are sums over tokens: divide them by the number of tokens.
    """
    mask = scale > 0
    token_log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    log_ratio = token_log_ratio
    if surrogate is not None:
        log_ratio, token_advantages = surrogate(token_log_ratio, token_advantages, mask)
    ratio = policy_log_ratio(log_ratio, mask, ratio_level).exp()
    clipped = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    per_token = -torch.minimum(ratio * token_advantages, clipped * token_advantages)
    if correction is not None:
        per_token = per_token * correction
    if ref_logprobs is not None:
        log_ref_ratio = torch.where(mask, ref_logprobs - logprobs, 0.0)
        per_token = per_token + kl_coef * (log_ref_ratio.exp() - log_ref_ratio - 1)
    if auxiliary is not None:
        per_token = per_token + auxiliary
    loss = (per_token * scale).sum()
    was_clipped = clipped_tokens(ratio, token_advantages, clip_eps_low, clip_eps_high) & mask
    approx_kl = (token_log_ratio.exp() - 1 - token_log_ratio) * mask
    return loss, {"clipped": was_clipped.sum().detach(), "approx_kl": approx_kl.sum().detach()}


def clipped_tokens(ratio: Tensor, token_advantages: Tensor, clip_eps_low: float, clip_eps_high: float) -> Tensor:
    """Which tokens (B, T) have no gradient, because their ratio has gone past the clip in their advantage's direction."""
    clipped = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return clipped * token_advantages < ratio * token_advantages


def sampler_correction(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling for what the learner did not draw itself: min(exp(old - sampler), cap), (B, T).

    Three policies meet in the loss: mu, which drew the completions (`sampler_logprobs`: the engine's arithmetic, and with
    `rollout.max_staleness` 1 the weights of one update ago); pi_old, the learner before its update (`old_logprobs`, always scored
    anew by the learner); and pi, which is being updated. The objective is that of decoupled PPO (arXiv 2110.00641, for
    language models arXiv 2505.24298), with a truncated weight:
        sum over y_t ~ mu of  min(pi_old / mu, cap) x min(r A, clip(r) A),   r = pi / pi_old.
    What an update may change is measured from pi_old and what was drawn is reweighted from mu. Were mu to stand for pi_old, as
    in plain PPO, stale completions would be half clipped before the first step, and each update would be held near the older
    policy. The weight is a constant of the gradient. It is taken token by token: that the tokens before were drawn by mu as
    well is left uncorrected, as is usual, for a product over a completion has no usable variance.
    """
    return (old_logprobs - sampler_logprobs).exp().clamp(max=cap)
