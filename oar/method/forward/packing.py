"""Sequences of any lengths, one behind another in one row: the model runs over real tokens only, nothing is padded.

Everything but attention treats each token on its own. Attention gets each sequence alone, so that none sees another, and what it
was given is kept as it passes: no model's code is changed or repeated for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from oar.common.errors import DataError

_ATTENTION = "oar_packed"  # no mask is registered for it, so transformers makes none
_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Packing:
    """Where R sequences stand in a row of N tokens: starts (R,), and how long they are, which the CPU must know too."""

    starts: Tensor
    lengths: Sequence[int]

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Packing":
        """One behind another."""
        return cls(torch.tensor([0, *accumulate(lengths)][:-1], device=device), lengths)

    def rows(self, index: Tensor) -> "Packing":
        """Some of the sequences; they stay where they stand."""
        return Packing(self.starts[index], [self.lengths[row] for row in index.tolist()])

    def tokens(self) -> tuple[Tensor, Tensor]:
        """The sequence of each of their tokens, one sequence behind another, and its position there."""
        lengths, device = torch.tensor(self.lengths), self.starts.device
        row = torch.arange(len(lengths)).repeat_interleave(lengths)
        position = torch.arange(len(row)) - (lengths.cumsum(0) - lengths)[row]
        return row.to(device), position.to(device)

    def at(self, states: Tensor, row: Tensor, position: Tensor) -> Tensor:
        """`states` (N, ...) of sequences `row` at `position`, shaped alike; behind a sequence's end stands nothing of use."""
        return states[(self.starts[row] + position).clamp(max=len(states) - 1)]

    def padded(self, states: Tensor, width: int) -> Tensor:
        """(heads, N, D) as (R, heads, width, D); behind a sequence's end stands something that means nothing."""
        position = torch.arange(width, device=states.device)
        place = (self.starts[:, None] + position).clamp(max=states.shape[1] - 1)
        return states[:, place].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Attended:
    """query (heads, N, D), key and value (key-value heads, N, D), position encoding included; their products' scaling."""

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float


class PackedSequences:
    """What each layer's attention needs to know of the row, and a note of what it was given, layer by layer."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self._layers: list[Attended] | None = []

    def note(self, attended: Attended) -> None:
        """One more layer."""
        if self._layers is not None:
            self._layers.append(attended)

    def noted(self) -> list[Attended]:
        """What was noted. From here on nothing is: layers that a backward pass runs again are no news, and take memory."""
        layers, self._layers = self._layers or [], None
        return layers


def run_packed(model: PreTrainedModel, embeddings: Tensor, packing: Packing) -> tuple[Tensor, list[Attended]]:
    """The last hidden states (N, H) of input embeddings (N, H), and what each layer's attention was given.

    Raises DataError for a model whose layers are not all softmax attention that transformers looks up by name.
    """
    unknown = set(getattr(model.config, "layer_types", None) or ()) - _LAYERS
    if model.config._attn_implementation != "sdpa" or unknown:
        raise DataError(
            "The model's layers must attend by sdpa, to all earlier tokens or to a window of them, but have "
            f"{', '.join([str(model.config._attn_implementation), *sorted(unknown)])}: load the model with "
            "attn_implementation='sdpa', or take another."
        )
    _, position = packing.tokens()
    sequences = PackedSequences(packing.lengths)
    with AttentionNamed(model, _ATTENTION):
        hidden = model.base_model(
            inputs_embeds=embeddings[None], position_ids=position[None], use_cache=False, packed=sequences
        ).last_hidden_state[0]
    return hidden, sequences.noted()


class AttentionNamed:
    """The model attends by the function registered under `name` in the block; may be entered again, but not within itself."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._config, self._name = model.config, name

    def __enter__(self) -> None:
        self._before = self._config._attn_implementation
        self._config._attn_implementation = self._name

    def __exit__(self, *_: object) -> None:
        self._config._attn_implementation = self._before


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    packed: PackedSequences,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: query (1, heads, N, D), key and value (1, key-value heads, N, D)."""
    if options.get("softcap") is not None or options.get("s_aux") is not None:
        raise DataError(
            "The model's attention must be plain softmax attention, but it caps scores or has attention sinks: take another "
            "model."
        )
    packed.note(Attended(query[0].detach(), key[0].detach(), value[0].detach(), options["scaling"]))
    attend, outputs = AttentionInterface()["sdpa"], []
    parts = (states.split(packed.lengths, dim=2) for states in (query, key, value))
    for own_query, own_key, own_value in zip(*parts, strict=True):
        mask = _window(own_query, sliding_window)
        outputs.append(attend(module, own_query, own_key, own_value, mask, **options)[0])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1), None


def _window(query: Tensor, width: int | None) -> Tensor | None:
    """(1, 1, L, L), True where one of L queries may look: at itself and the `width` - 1 tokens before it.

    None where it may look at all of them: without a mask the kernel leaves out by itself what a causal query does not see.
    """
    if width is None or width >= query.shape[2]:
        return None
    position = torch.arange(query.shape[2], device=query.device)
    back = position[:, None] - position
    return ((back >= 0) & (back < width))[None, None]


AttentionInterface.register(_ATTENTION, _packed_attention)
