"""Logprobs and entropy of tokens from hidden states, over one block of the vocabulary at a time.

The logits of N tokens over V words are N x V numbers, and plain autograd keeps several such tensors: with a vocabulary of
150,000 they outweigh all else an update holds. Here one block of columns is made at a time. The backward needs each block once
more: the first ones, up to a fixed number of logits, are kept for it, all others are computed again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from oar.common.errors import DataError

# Logits of a block. A few MiB stay in a CPU's cache, which makes this faster than all logits at once; a GPU wants more work.
CPU_BLOCK, GPU_BLOCK = 2**21, 2**26
# Columns of a GPU's block are a multiple of this: for rows of another number cuBLAS has slow kernels alone (on an H100 the head
# took four times as long; results/gpu_check, kernels).
ALIGNED = 256
# Logits that the forward keeps at most: to compute all of them again is a quarter of the head's work, to keep these 128 MiB.
KEPT = 2**25


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """How many tokens' logits over all of `vocabulary` words make a block, for whoever needs whole distributions; 1 at least."""
    return max(1, _block(device) // vocabulary)


def token_scores(hidden: Tensor, head: nn.Module, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Logprobs (N,) of `tokens` (N,) and entropy (N,), in nats, where `head` reads hidden states (N, H); float32 at least.

    Both are of softmax(logits / temperature). Gradients flow from the logprobs to `hidden` and the head's parameters; the
    entropy has none. Raises DataError for a head that is not linear.
    """
    if not isinstance(head, nn.Linear):
        raise DataError(
            f"The model's output embeddings must be a linear layer, but are {type(head).__name__}: leave the head out of "
            "what is replaced, or take another model."
        )
    keep = KEPT if torch.is_grad_enabled() else 0  # within a Function's forward this can no longer be told
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(hidden, head.weight, head.bias, tokens, temperature, keep)
    return scores


class _TokenScores(torch.autograd.Function):
    """The running maximum and sums of log-softmax over blocks of columns; the gradient of a logprob is 1[v = token] - p_v."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float, keep: int
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        chosen, total, moment = hidden.new_zeros(3, len(hidden), dtype=dtype)
        top = torch.full_like(total, torch.finfo(dtype).min)
        kept: list[Tensor] = []  # exp(l - top) of the first blocks, each followed by its top
        for columns in _blocks(hidden, weight):
            logits = _logits(hidden, weight, bias, columns, temperature)
            place, here = _within(tokens, columns)
            chosen = torch.where(here, logits.gather(1, place)[:, 0], chosen)
            # total: sum of exp(l - top); moment: sum of exp(l - top) (l - top), for the entropy loses digits otherwise.
            before, top = top, torch.maximum(top, logits.amax(dim=1))
            shift = before - top
            share = logits.sub_(top[:, None]).exp()
            moment = (moment + total * shift) * shift.exp() + torch.linalg.vecdot(share, logits)
            total = total * shift.exp() + share.sum(dim=1)
            keep -= share.numel()
            if keep >= 0:
                kept += [share, top]
        normalizer = top + total.log()
        entropy = total.log() - moment / total
        ctx.save_for_backward(hidden, weight, bias, tokens, normalizer, *kept)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return chosen - normalizer, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens, normalizer, *kept = ctx.saved_tensors
        scale = (gradients[0] / ctx.temperature)[:, None]
        to_hidden, to_weight, to_bias = None, None, None
        if ctx.needs_input_grad[0]:
            to_hidden = torch.zeros_like(hidden, dtype=scale.dtype)
        if ctx.needs_input_grad[1]:
            to_weight = torch.empty_like(weight)
        if ctx.needs_input_grad[2]:
            to_bias = torch.empty_like(bias)
        for block, columns in enumerate(_blocks(hidden, weight)):
            if 2 * block < len(kept):
                share, top = kept[2 * block : 2 * block + 2]
                gradient = share * ((top - normalizer).exp()[:, None] * -scale)
            else:
                share = _logits(hidden, weight, bias, columns, ctx.temperature).sub_(normalizer[:, None]).exp_()
                gradient = share.mul_(-scale)
            place, here = _within(tokens, columns)
            gradient.scatter_(1, place, gradient.gather(1, place) + torch.where(here[:, None], scale, 0.0))
            if to_bias is not None:
                to_bias[columns] = gradient.sum(dim=0)
            gradient = gradient.to(weight.dtype)
            if to_hidden is not None:
                to_hidden += gradient @ weight[columns]
            if to_weight is not None:
                torch.mm(gradient.T, hidden, out=to_weight[columns])
        return None if to_hidden is None else to_hidden.to(hidden.dtype), to_weight, to_bias, None, None, None


def _block(device: torch.device) -> int:
    return CPU_BLOCK if device.type == "cpu" else GPU_BLOCK


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """The columns of each block."""
    multiple = 1 if hidden.device.type == "cpu" else ALIGNED
    width = max(1, _block(hidden.device) // max(1, len(hidden)) // multiple) * multiple
    for start in range(0, len(weight), width):
        yield slice(start, min(start + width, len(weight)))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, columns: slice, temperature: float) -> Tensor:
    """(N, columns) in float32 at least, rounded by the matrix product as the sampler's are."""
    logits = linear(hidden, weight[columns], None if bias is None else bias[columns])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)


def _within(tokens: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Column of the block (N, 1) of each token, any column where it is elsewhere, and whether it is here (N,)."""
    place = tokens - columns.start
    here = (place >= 0) & (tokens < columns.stop)
    return place.clamp(0, columns.stop - columns.start - 1)[:, None], here
