"""The attention knock-out to first order: what the outcome loses where no later position attends to a token, in one backward.

Let position i of layer l no longer attend to token t. The output of its head then is that of the other tokens alone, which
needs no second forward:
    change(l, head, i, t) = (o_i - v_t) a_it / (1 - a_it),
a its attention, o its output, v the values. The softmax, which saturates, is exact in this; what lies behind attention is taken
to be linear: with g the gradient of the outcome's log-likelihood to o, effect(l, i, t) = sum over heads of <g_i, change>.
A gradient to the embedding of t is blind to much of it: it is local, and a pre-norm model undoes what lies along the embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from oar.method.forward.packing import Attended, Packing
from oar.method.importance.base import CreditInputs
from oar.method.importance.clean import clean_passes, outcome_gradients
from oar.method.importance.routes import attention_products
from oar.method.importance.signed import towards_gold

_LEAST_REST = 1e-3  # of a query's attention: rounding of 1 - a would be divided by less


@dataclass(frozen=True, slots=True)
class AttentionGradientImportance:
    """I_t = sum over layers l and later positions i of effect(l, i, t)^2, without noise.

    The outcome is that of its most likely token (as_joint: the answer). Squares, since a divergence is quadratic in a small
    change, and what many places do to the outcome points in many directions, of which one token's log-likelihood sees one.
    Where the update's forward can be shared this costs one backward, and in each layer the two products of attention.
    """

    max_tokens_per_forward: int = 2048

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats^2."""
        return _over_places(inputs, self.max_tokens_per_forward, power=2)


@dataclass(frozen=True, slots=True)
class AttentionGradientDrop:
    """s_t = -sum over layers l and later positions i of effect(l, i, t): the fall of log p(right answer), in one backward."""

    max_tokens_per_forward: int = 2048
    bounded: bool = False
    reads_gold: ClassVar[bool] = True

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats, or in tokens."""
        return -_over_places(towards_gold(inputs, self.bounded), self.max_tokens_per_forward, power=1)


def _over_places(inputs: CreditInputs, max_tokens: int, *, power: int) -> Tensor:
    """(B, T) the sum over layers and later positions of effects, to the power of 1 or 2; 0 outside the reasoning."""
    mask = inputs.batch.reasoning_mask
    found = torch.zeros(mask.shape, device=mask.device)
    for clean in clean_passes(inputs, max_tokens, graph=True):
        forward, width = clean.forward, max(clean.forward.packing.lengths)
        edges = [layer.output for layer in forward.layers if layer.output is not None]
        standing = clean.shown.reasoning_positions
        first = int(standing[:, 0].min())  # before it nobody can attend to reasoning; read once: a GPU is waited for
        own = torch.arange(width, device=mask.device) < clean.shown.lengths[:, None]
        sums = torch.zeros(len(standing), width, device=mask.device)
        for layer, gradient in zip(forward.layers, outcome_gradients(inputs, clean, edges), strict=True):
            # Behind a sequence's end stands the next one's gradient.
            pull = forward.packing.padded(gradient[0].transpose(0, 1), width).masked_fill(~own[:, None, :, None], 0.0)
            for effect in _effects(layer, forward.packing, pull, first, max_tokens):
                sums[:, : effect.shape[2]] += effect.pow(power).sum(dim=1)
        found[clean.completions] = sums.gather(1, standing.clamp(max=width - 1))
    return found * mask


@torch.no_grad()
def _effects(layer: Attended, packing: Packing, pull: Tensor, first: int, max_tokens: int) -> Iterator[Tensor]:
    """effect(i, t), (R, Q, K), for Q positions i at a time, from `first` on, and all K up to the last; 0 where t is not before i.

    pull (R, heads, L, D): the gradient of the outcome to the layer's attention.
    """
    rows, heads, length, _ = pull.shape
    query, key, value = (packing.padded(states, length) for states in (layer.query, layer.key, layer.value))
    block = max(1, max_tokens // (rows * heads))  # of all heads as much is held as one has of `max_tokens` queries
    for start in range(first, length, block):
        end = min(start + block, length)
        position = torch.arange(end, device=pull.device)
        back = position[start:, None] - position  # (Q, K)
        hidden = back < 0 if layer.window is None else (back < 0) | (back >= layer.window)
        scores = attention_products(query[:, :, start:end], key[:, :, :end], layer.scaling)
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
        pulled = attention_products(pull[:, :, start:end], value[:, :, :end], 1.0)  # <g_i, v_t>
        # <g_i, o_i>, of the same products: the difference of the two is small beside them where a token has all attention.
        away = (weights * pulled).sum(dim=-1, keepdim=True) - pulled
        effect = (away * weights / (1 - weights).clamp(min=_LEAST_REST)).sum(dim=1)
        yield effect.masked_fill(back <= 0, 0.0)
