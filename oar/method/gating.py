"""Bi-level gating with mass preservation: from importance to token weights (docs/METHOD.md §5)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.names import THRESHOLDS

Gate = Callable[[Tensor, Tensor], Tensor]  # importance (B, T), reasoning mask (B, T) -> token weights (B, T)


def make_gate(
    *, tau: float, beta: float, floor: float, threshold: str, suppress: bool = True, boost: bool = True
) -> Gate:
    """`bilevel_weights` with its parameters bound, for one training step: that of "released_drift" remembers its rows."""
    gate = partial(bilevel_weights, beta=beta, floor=floor, threshold=threshold, suppress=suppress, boost=boost)
    return _Drift(gate, tau) if threshold == "released_drift" else partial(gate, tau=tau)


def bilevel_weights(
    importance: Tensor,
    reasoning_mask: Tensor,
    *,
    tau: float,
    beta: float,
    floor: float,
    threshold: str,
    suppress: bool = True,
    boost: bool = True,
) -> Tensor:
    """Token weights (B, T) of mean 1 over each row's reasoning tokens; exactly 1 everywhere else.

    importance (B, T) >= 0, reasoning_mask (B, T). s = log1p(importance), min-max to [0, 1] per row. Below the threshold
    tau' a token is suppressed to max(s / tau', floor), at or above it boosted to 1 + beta (s - tau') / (1 - tau'); then
    the row is rescaled so that its weights sum to the number of its reasoning tokens. `threshold` "quantile" puts tau'
    at the row's tau-quantile of s, "absolute" at tau itself; "released_drift" is the loop of the authors' code, which
    overwrites its threshold (docs/METHOD.md §10): only the first row's tau' is its tau-quantile, every later one is
    the quantile at the *value* of the row before, so rows depend on their order. Without `suppress` (`boost`) the
    weight below (at or above) tau' is 1. A row whose importance is all equal keeps weight 1 exactly, so uniform
    importance is GRPO to the bit.

    Raises DataError naming the row for importance that is negative, NaN or infinite, and for any other `threshold`.
    """
    mask = reasoning_mask.bool()
    if mask.shape[1] == 0:
        return torch.ones_like(importance, dtype=torch.float32)
    scores, low, high, level = _scores_and_level(importance.float(), mask, tau, threshold)
    varied = high > low  # False as well for a row without reasoning tokens (inf > -inf reversed)
    below = scores < level
    # Where tau' is 1 only the maximum is at it, with excess 0; where it is 0 nothing is below.
    suppressed = (scores / level.clamp(min=torch.finfo(scores.dtype).tiny)).clamp(min=floor)
    boosted = 1 + beta * (scores - level) / (1 - level).where(level < 1, torch.ones_like(level))
    weights = torch.where(
        below,
        suppressed if suppress else torch.ones_like(scores),
        boosted if boost else torch.ones_like(scores),
    )
    weights = weights.masked_fill(~mask, 0.0)
    count, total = mask.sum(dim=1, keepdim=True), weights.sum(dim=1, keepdim=True)
    weights = weights * count / total.where(varied, torch.ones_like(total))
    return torch.where(varied & mask, weights, 1.0)


def drifted_tau(importance: Tensor, reasoning_mask: Tensor, *, tau: float) -> float:
    """What "released_drift" has in `tau`'s place behind these rows: the threshold of the last one that reasons.

    Given to the next call, it makes the rows of both the same as if they had come in one. Raises as `bilevel_weights` does.
    """
    mask = reasoning_mask.bool()
    reasons = mask.any(dim=1)
    if not reasons.any():
        return tau
    level = _scores_and_level(importance.float(), mask, tau, "released_drift")[-1]
    return float(level[reasons][-1])


def weight_metrics(token_weights: Tensor, reasoning_mask: Tensor) -> dict[str, float]:
    """How far weights (B, T) are from uniform over reasoning tokens (docs/METHOD.md §8).

    `ess_ratio` (sum w)^2 / (T sum w^2), mean over rows, 0 where all are 0; `suppressed_share` and `boosted_share` of tokens
    below and above 1; `max`; `mass`, their mean. Rows without reasoning tokens do not count; without any such row the weights
    are uniform.
    """
    mask = reasoning_mask.bool()
    filled = mask.any(dim=1)
    if not filled.any():
        return {"ess_ratio": 1.0, "suppressed_share": 0.0, "boosted_share": 0.0, "max": 1.0, "mass": 1.0}
    weights = token_weights.masked_fill(~mask, 0.0)[filled]
    count = mask.sum(dim=1)[filled]
    ess = weights.sum(dim=1).square() / (count * weights.square().sum(dim=1)).clamp(min=torch.finfo(weights.dtype).tiny)
    chosen = token_weights[mask]
    return {
        "ess_ratio": float(ess.mean()),
        "suppressed_share": float((chosen < 1).float().mean()),
        "boosted_share": float((chosen > 1).float().mean()),
        "max": float(chosen.max()),
        "mass": float(chosen.mean()),
    }


def threshold_importance(importance: Tensor, reasoning_mask: Tensor, *, tau: float, threshold: str) -> Tensor:
    """The importance from which on `bilevel_weights` boosts, (B,): its tau' taken back through min-max and log1p.

    NaN for a row whose importance is all equal, or that has no reasoning tokens: its weights are 1 whatever tau' is.
    Raises as `bilevel_weights` does.
    """
    mask = reasoning_mask.bool()
    if mask.shape[1] == 0:
        return torch.full((len(mask),), torch.nan)
    _, low, high, level = _scores_and_level(importance.float(), mask, tau, threshold)
    return (low + level * (high - low)).expm1().masked_fill(~(high > low), torch.nan)[:, 0]


@dataclass(slots=True)
class _Drift:
    """Carries the level on which the next completion's threshold depends from call to call."""

    gate: partial[Tensor]
    tau: float

    def __call__(self, importance: Tensor, reasoning_mask: Tensor) -> Tensor:
        weights = self.gate(importance, reasoning_mask, tau=self.tau)
        self.tau = drifted_tau(importance, reasoning_mask, tau=self.tau)
        return weights


def _scores_and_level(
    importance: Tensor, mask: Tensor, tau: float, threshold: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores (B, T), 0 outside the mask and where a row's are all equal; of log1p its least and largest value; tau', (B, 1)."""
    if threshold not in THRESHOLDS:
        raise DataError(f"threshold must be one of {', '.join(THRESHOLDS)}, but is {threshold!r}.")
    bad = (mask & ~(torch.isfinite(importance) & (importance >= 0))).any(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise DataError(
            f"Importance must be finite and not negative, but row {row} holds {importance[row][mask[row]]}."
        )
    scores = importance.log1p()
    low = scores.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
    high = scores.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
    varied = high > low
    scores = torch.where(varied & mask, (scores - low) / (high - low).where(varied, torch.ones_like(low)), 0.0)
    if threshold == "quantile":
        level = _row_quantile(scores, mask, tau)
    elif threshold == "absolute":
        level = torch.full_like(low, tau)
    else:
        level = _drifting_quantile(scores, mask, tau)
    return scores, low, high, level


def _drifting_quantile(scores: Tensor, mask: Tensor, tau: float) -> Tensor:
    """Each row's quantile of `scores` (B, T) at the level that the row before had as its threshold, (B, 1).

    Two kinds of rows have weight 1 whatever the threshold is, and leave one behind as the released loop does. All
    importance equal: the scores are 0 there, so is the quantile, and so is every later one (the least score of a row),
    that is boost only from there on. No reasoning tokens: the loop cannot take such a row, so it is passed over.
    """
    levels = torch.zeros(len(scores), 1, dtype=scores.dtype, device=scores.device)
    for row in mask.any(dim=1).nonzero()[:, 0].tolist():
        levels[row] = _row_quantile(scores[row : row + 1], mask[row : row + 1], tau)
        tau = float(levels[row])
    return levels


def _row_quantile(values: Tensor, mask: Tensor, q: float) -> Tensor:
    """The q-quantile (linear interpolation) of each row's masked values, (B, 1); 0 for a row without any."""
    ordered = values.masked_fill(~mask, torch.inf).sort(dim=1).values
    position = q * (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0).to(values.dtype)
    lower = ordered.gather(1, position.floor().long())
    upper = ordered.gather(1, position.ceil().long())
    quantile = lower + (upper - lower) * (position - position.floor())
    return quantile.where(mask.any(dim=1, keepdim=True), torch.zeros_like(quantile))
