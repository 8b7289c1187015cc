"""What each layer's attention is given in a forward, kept as it passes: no model's code is changed or repeated for it."""

from collections import UserList
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from oar.errors import DataError


@dataclass(frozen=True, slots=True)
class Attended:
    """query (R, heads, L, D), key and value (R, key-value heads, L, D), position encoding included; their products' scaling."""

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float

    def rows(self, index: Tensor) -> "Attended":
        """Some of the rows."""
        return replace(self, query=self.query[index], key=self.key[index], value=self.value[index])


@contextmanager
def recorded_attention(model: PreTrainedModel) -> Iterator[UserList[Attended]]:
    """A list for the model's keyword argument `recorded`, which gets one entry for each layer in their order.

    Raises DataError for an attention that transformers does not look up by name.
    """
    base = model.config._attn_implementation
    if base not in AttentionInterface().valid_keys():
        raise DataError(
            f"The model's attention must be one that transformers looks up (sdpa is the default), but is {base!r}: "
            "load the model with attn_implementation='sdpa'."
        )
    name = f"oar_recorded_{base}"
    attend, mask = AttentionInterface()[base], AttentionMaskInterface()[base]

    def record(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *args: Any,
        recorded: UserList[Attended],
        **options: Any,
    ) -> Any:
        recorded.append(Attended(query.detach(), key.detach(), value.detach(), options["scaling"]))
        return attend(module, query, key, value, *args, **options)

    AttentionInterface.register(name, record)
    AttentionMaskInterface.register(name, mask)
    with attention_named(model, name):
        yield UserList()


@contextmanager
def attention_named(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model attends by the function registered under `name` in the block."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before
