"""Group-relative advantages: GRPO and its usual variants (docs/METHOD.md §1), and what a completion's length costs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from oar.common.errors import DataError


def group_advantages(
    rewards: Tensor,
    num_generations: int,
    *,
    divide_by_std: bool = True,
    leave_one_out: bool = False,
    eps: float = 1e-4,
) -> Tensor:
    """Advantage (B,) of each completion within its group of `num_generations` consecutive ones.

    A_i = (r_i - mean r) / (std r + eps), std unbiased; exactly 0 where all rewards of a group are equal. Without
    `divide_by_std` it is Dr. GRPO's; `leave_one_out` takes the mean of the others (RLOO). Raises DataError where B is
    no multiple of the group size.
    """
    if rewards.numel() % num_generations:
        raise DataError(
            f"Rewards must come in whole groups of {num_generations} completions, but there are {rewards.numel()}."
        )
    grouped = rewards.float().view(-1, num_generations)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    if leave_one_out:
        centred = centred * num_generations / (num_generations - 1)
    if divide_by_std:
        centred = centred / (grouped.std(dim=1, keepdim=True) + eps)
    # The mean of equal rewards may differ from them in the last bit.
    all_equal = (grouped == grouped[:, :1]).all(dim=1, keepdim=True)
    return torch.where(all_equal, torch.zeros_like(centred), centred).view(-1)


def centred(values: Tensor, groups: Tensor) -> Tensor:
    """Values (N, ...) less the mean of those of the same number in `groups` (N,)."""
    names, member = groups.unique(return_inverse=True)
    totals = values.new_zeros(len(names), *values.shape[1:]).index_add_(0, member, values)
    counts = torch.bincount(member).to(values.dtype).view(-1, *[1] * (values.ndim - 1))
    return values - (totals / counts)[member]


def decoupled_advantages(terms: Tensor, weights: Sequence[float], compared: Callable[[Tensor], Tensor]) -> Tensor:
    """(B,): the weighted mean over reward terms (B, S) of the advantages that each one has by itself.

    `compared`: rewards (B,) to advantages (B,), e.g. `group_advantages`. A term that varies little in a group then counts as
    much as one that varies a lot, where in the advantage of a sum it would drown (CRPO, arXiv 2605.25511, whose two streams are
    weighted by 0.5 each).
    """
    found = sum(weight * compared(term) for weight, term in zip(weights, terms.unbind(1), strict=True))
    return torch.as_tensor(found) / sum(abs(weight) for weight in weights)


def identity_weighted(
    advantages: Tensor, likelihoods: Tensor, num_generations: int, generic: int, strength: float
) -> Tensor:
    """Advantages (B,) where the last `generic` completions of each group were drawn under a generic prompt.

    A <- A (1 - strength x H) of the others, H the entropy in nats of a coin that falls by p = e^m / (e^m + e^g): m the
    completion's mean log-probability per token (`likelihoods`, (B,)), g that of the group's generic ones. What cannot be told
    from a generic completion counts a little less, at most strength x ln 2 (CRPO, arXiv 2605.25511, with strength 0.02).
    """
    own = likelihoods.view(-1, num_generations)
    ahead = own - own[:, -generic:].mean(dim=1, keepdim=True)
    entropy = -(ahead.sigmoid() * logsigmoid(ahead) + (-ahead).sigmoid() * logsigmoid(-ahead))
    entropy[:, -generic:] = 0.0
    return advantages * (1 - strength * entropy.view(-1))


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """Token advantages (B, T) of mean 0 and variance 1 over the tokens under `mask`, 0 outside it; a lone token stays.

    The constant in the variance is that of the released code of VinePPO, SPO and PRIME.
    """
    found = values[mask]
    if len(found) > 1:
        values = (values - found.mean()) / (found.var() + 1e-8).sqrt()
    return values.masked_fill(~mask, 0.0)


def overlong_penalty(completion_lengths: Tensor, max_completion_length: int, buffer: int) -> Tensor:
    """What is added to the reward of a completion for its length (B,), 0 down to -1: DAPO's soft overlong punishment.

    With L_max = `max_completion_length` and L_cache = `buffer`, both in tokens, 0 up to L_max - L_cache, then
    ((L_max - L_cache) - length) / L_cache: -1 at L_max (arXiv 2503.14476 §3.4; its -1 beyond L_max never arises, since
    completions are cut there). DAPO has 4,096 of 20,480.
    """
    return ((max_completion_length - buffer - completion_lengths) / buffer).clamp(-1.0, 0.0)
