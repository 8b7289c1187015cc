"""How many tokens go through a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(slots=True)
class TokenCount:
    """Positions that ran through the layers, padding included: forwards, and backwards from the last hidden states."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counted_tokens(model: PreTrainedModel) -> Iterator[TokenCount]:
    """Counts rows x width of every call of the decoder in the block."""
    count = TokenCount()

    def ran(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        states: Tensor = output.last_hidden_state
        tokens = states.shape[0] * states.shape[1]
        count.forward += tokens

        def differentiated(_: Tensor) -> None:
            count.backward += tokens

        if states.requires_grad:
            states.register_hook(differentiated)

    hook = model.base_model.register_forward_hook(ran)
    try:
        yield count
    finally:
        hook.remove()
