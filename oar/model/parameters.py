"""The whole weights of a model, however it is held."""

from collections.abc import Callable, Iterator

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

Gather = Callable[[PreTrainedModel, torch.dtype | None], Iterator[tuple[str, Tensor]]]  # what `full_weights` is
ADAPTER = "default"  # what an adapter is called within the model (oar/model/lora.py)


def full_weights(model: PreTrainedModel, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, one at a time, as they are or in `dtype`; those of a sharded model are gathered.

    In gathering every rank has to take part. Tied weights come once, under the name of the input embeddings. What an adapter
    adds is added in: these are the weights of the model as it would be without one, under their own names.
    """
    for name, weight, adapted in _held(model):
        held = whole(weight.detach())
        yield name, (held if adapted is None else held + _product(adapted)).to(dtype or weight.dtype)


def described(model: PreTrainedModel, dtype: torch.dtype | None = None) -> list[tuple[str, torch.dtype, torch.Size]]:
    """Name, type and whole shape of what `full_weights` yields, in its order; nothing is gathered for it."""
    return [(name, dtype or weight.dtype, weight.shape) for name, weight, _ in _held(model)]


def take_part(model: PreTrainedModel) -> None:
    """For the other ranks while one of them goes through `full_weights`."""
    for _ in full_weights(model):
        pass


def _product(layer: Linear) -> Tensor:
    """(alpha / r) B A."""
    a, b = (whole(layer.get_parameter(f"lora_{which}.{ADAPTER}.weight").detach()) for which in "AB")
    return layer.scaling[ADAPTER] * (b @ a)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where each rank holds a part of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _held(model: PreTrainedModel) -> Iterator[tuple[str, Tensor, Linear | None]]:
    """Names, weights as they are held, and the layer whose adapter changes them."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    for name, weight in model.state_dict().items():
        layer, _, kind = name.rpartition(".base_layer.")
        if layer in layers:
            yield f"{layer}.{kind}", weight, layers[layer] if kind == "weight" else None
        elif ".lora_" not in name and not (model.config.tie_word_embeddings and name == "lm_head.weight"):
            yield name, weight, None
