"""Group-relative advantages: GRPO and its usual variants (docs/METHOD.md §1), and what a completion's length costs."""

import torch
from torch import Tensor

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


def overlong_penalty(completion_lengths: Tensor, max_completion_length: int, buffer: int) -> Tensor:
    """What is added to the reward of a completion for its length (B,), 0 down to -1: DAPO's soft overlong punishment.

    With L_max = `max_completion_length` and L_cache = `buffer`, both in tokens, 0 up to L_max - L_cache, then
    ((L_max - L_cache) - length) / L_cache: -1 at L_max (arXiv 2503.14476 §3.4; its -1 beyond L_max never arises, since
    completions are cut there). DAPO has 4,096 of 20,480.
    """
    return ((max_completion_length - buffer - completion_lengths) / buffer).clamp(-1.0, 0.0)
