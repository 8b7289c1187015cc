"""Two forwards side by side in half precision, so that rounding does not swallow what is different between them.

A small change of the input moves the logits by less than bfloat16 rounds a state by, in each layer anew. So states are float32,
and a linear layer, whose weights have no more than half precision, is given the first of two forwards and the *difference* to
the second, both rounded: W y = W x + W (y - x). What rounding does to x is then done to both alike, and what it does to the
difference is small beside the difference. The matrix products, nearly all of the work, stay those of half precision.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel


@contextmanager
def in_pairs(model: PreTrainedModel) -> Iterator[None]:
    """In the block the model takes rows (2R, ...) in float32: R, and then the same R changed; a backward belongs in it too."""
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, nn.Linear)]
    adapters: list[Any] = [module for module in model.modules() if getattr(module, "cast_input_dtype_enabled", False)]
    for layer in layers:
        layer.forward = partial(_linear, layer)
    for adapter in adapters:
        adapter.cast_input_dtype_enabled = False  # peft's: it would round states before its linear layers get them
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        for adapter in adapters:
            adapter.cast_input_dtype_enabled = True


def _linear(layer: Any, states: Tensor) -> Tensor:
    first, second = states.chunk(2)
    first, dtype = first.detach(), layer.weight.dtype  # no gradient is asked of what is not changed
    given = linear(first.to(dtype), layer.weight, layer.bias).detach().float()
    moved = linear((second - first).to(dtype), layer.weight).float()
    return torch.cat([given, given + moved])
