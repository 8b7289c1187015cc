"""How many tokens go through a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(slots=True)
class TokenCount:
    """Positions that ran through the layers, padding included: forwards, and backwards down to the input embeddings."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counted_tokens(model: PreTrainedModel) -> Iterator[TokenCount]:
    """Counts rows x width of every call of the decoder in the block."""
    count = TokenCount()

    def entered(_: nn.Module, __: tuple[Any, ...], options: dict[str, Any]) -> None:
        embeddings: Tensor | None = options.get("inputs_embeds")
        rows, width = (options["input_ids"] if embeddings is None else embeddings).shape[:2]
        count.forward += rows * width

        def differentiated(_: Tensor) -> None:
            count.backward += rows * width

        if embeddings is not None and embeddings.requires_grad:
            embeddings.register_hook(differentiated)

    hook = model.base_model.register_forward_pre_hook(entered, with_kwargs=True)
    try:
        yield count
    finally:
        hook.remove()
