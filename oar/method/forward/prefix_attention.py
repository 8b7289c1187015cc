"""Attention of completions to a beginning that they share and to themselves, as two calls of a CPU's kernel without a mask.

With a mask the kernel computes what the mask leaves out as well, and each completion has a copy of the beginning's keys. Without
one, all completions' queries read the beginning's keys in one call and their own in another, where blocks of keys behind a causal
query are left out. The two are merged by their log-sum-exp, as FlashAttention merges its blocks (arXiv 2205.14135).
"""

from typing import Any

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_to_prefix_and_own(
    query: Tensor, key: Tensor, value: Tensor, prefix_key: Tensor, prefix_value: Tensor, *, scaling: float
) -> Tensor:
    """(G, W, heads, D): what causal queries (G, heads, W, D) of G completions see of their own tokens and of P before these.

    key, value: their own, (G, key-value heads, W, D). prefix_key, prefix_value: the same for all, (1, key-value heads, P, D).
    All on a CPU.
    """
    repeats = query.shape[1] // key.shape[1]
    parts = [states.repeat_interleave(repeats, dim=1) for states in (key, value, prefix_key, prefix_value)]
    output: Tensor = _PrefixAndOwn.apply(query, *parts, scaling)
    return output.transpose(1, 2)


class _PrefixAndOwn(torch.autograd.Function):
    """The backward of each part needs the output and log-sum-exp of the whole: they make its probabilities those of the whole."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, prefix_key: Tensor, prefix_value: Tensor, scaling: float
    ) -> Tensor:
        ours, own_sum = _forward(query, key, value, 0.0, True, scale=scaling)
        theirs, prefix_sum = _forward(_one_row(query), prefix_key, prefix_value, 0.0, False, scale=scaling)
        theirs, prefix_sum = _rows(theirs, len(query)), _rows(prefix_sum, len(query))
        total = torch.logaddexp(own_sum, prefix_sum)  # (G, heads, W), of float32 at least
        output = torch.lerp(theirs.to(total.dtype), ours.to(total.dtype), (own_sum - total).exp()[..., None])
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, prefix_key, prefix_value, output, total)
        ctx.scaling = scaling
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, prefix_key, prefix_value, output, total = ctx.saved_tensors
        ours, *to_own = _backward(grad, query, key, value, output, total, 0.0, True, scale=ctx.scaling)
        row, queries, found, sums = (_one_row(states) for states in (grad, query, output, total))
        theirs, *to_prefix = _backward(
            row, queries, prefix_key, prefix_value, found, sums, 0.0, False, scale=ctx.scaling
        )
        return ours + _rows(theirs, len(query)), *to_own, *to_prefix, None


def _one_row(states: Tensor) -> Tensor:
    """(G, heads, W, ...) as (1, heads, G W, ...): what attends to the same keys without a mask is one long row of queries."""
    return states.transpose(0, 1).flatten(1, 2)[None]


def _rows(states: Tensor, rows: int) -> Tensor:
    """(1, heads, G W, ...) as (G, heads, W, ...)."""
    return states[0].unflatten(1, (rows, -1)).transpose(0, 1)
