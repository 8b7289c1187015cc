"""The whole weights of a model, however it is held."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


def full_weights(model: PreTrainedModel, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """Names and weights, one at a time, as they are or in `dtype`; those of a sharded model are gathered.

    In gathering every rank has to take part. Tied weights come once, under the name of the input embeddings.
    """
    for name, weight in _held(model):
        yield name, whole(weight.detach()).to(dtype or weight.dtype)


def described(model: PreTrainedModel, dtype: torch.dtype | None = None) -> list[tuple[str, torch.dtype, torch.Size]]:
    """Name, type and whole shape of what `full_weights` yields, in its order; nothing is gathered for it."""
    return [(name, dtype or weight.dtype, weight.shape) for name, weight in _held(model)]


def take_part(model: PreTrainedModel) -> None:
    """For the other ranks while one of them goes through `full_weights`."""
    for _ in full_weights(model):
        pass


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, gathered where each rank holds a part of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _held(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.state_dict().items():
        if not (model.config.tie_word_embeddings and name == "lm_head.weight"):
            yield name, weight
