"""Sequences of any lengths, one behind another in one row: the model runs over real tokens only, nothing is padded.

Sequences that begin alike, as the completions of one prompt do, have their beginning in the row once: it is computed once,
and the gradients of all of them flow into it (the idea of Prefix Grouper, arXiv 2506.05433).

Everything but attention treats each token on its own. Attention gets each sequence alone, so that none sees another, and what it
was given is kept as it passes: no model's code is changed or repeated for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from transformers import AttentionInterface, PreTrainedModel

from oar.common.errors import DataError
from oar.method.forward.prefix_attention import attend_to_prefix_and_own
from oar.method.forward.variable_length import Sequences, attend_by_sequence, has_kernel

ATTENTION = "oar_packed"  # as transformers finds it; no mask is registered under this name, so none is made
# Tokens. From about here on a completion's attention takes longer than the call of a kernel. A CPU's kernel takes that many keys
# at a time, so of fewer it can leave out none, and what a mask hides costs little.
_LONG = 512
_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Family:
    """Sequences whose first `prefix` tokens are the same. These stand in the row once, the rest of each behind them."""

    rows: Sequence[int]
    prefix: int
    rests: Sequence[int]


@dataclass(frozen=True, slots=True)
class Packing:
    """Where R sequences stand in a row of N tokens, and how long they are, which the CPU must know too.

    Token t of sequence r stands at prefix_starts[r] + t where t < prefixes[r], and at starts[r] + t from there on; all (R,).
    families: of the whole row, whichever of its sequences these R are.
    """

    starts: Tensor
    prefix_starts: Tensor
    prefixes: Tensor
    lengths: Sequence[int]
    families: Sequence[Family]

    @classmethod
    def of(
        cls, lengths: Sequence[int], device: torch.device, prefixes: Sequence[int] = (), alike: Sequence[int] = ()
    ) -> "Packing":
        """One behind another. Sequences r of one number alike[r] share their first prefixes[r] tokens, for all the same count."""
        members: dict[int, list[int]] = {}
        for row in range(len(lengths)):
            # Numbers of families are 0 or more; a sequence that shares no token is alone.
            members.setdefault(alike[row] if alike and prefixes[row] else -1 - row, []).append(row)
        families, places, end = [], torch.zeros(3, len(lengths), dtype=torch.long), 0
        for rows in members.values():
            prefix = prefixes[rows[0]] if len(rows) > 1 else 0
            families.append(Family(rows, prefix, [lengths[row] - prefix for row in rows]))
            places[1:, rows] = torch.tensor([[end], [prefix]])
            for row in rows:
                places[0, row] = end  # its token `prefix` stands right behind what is there
                end += lengths[row] - prefix
            end += prefix
        starts, prefix_starts, shared = places.to(device)
        return cls(starts, prefix_starts, shared, lengths, families)

    def rows(self, index: Tensor) -> "Packing":
        """Some of the sequences; they stay where they stand."""
        lengths = [self.lengths[row] for row in index.tolist()]
        return Packing(self.starts[index], self.prefix_starts[index], self.prefixes[index], lengths, self.families)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Of each of the N tokens of the whole row: a sequence that it belongs to, and its position there."""
        parts = [
            part
            for family in self.families
            for part in (
                (family.rows[0], 0, family.prefix),
                *((row, family.prefix, rest) for row, rest in zip(family.rows, family.rests, strict=True)),
            )
        ]
        row, start, length = torch.tensor(parts).T
        position = torch.arange(int(length.sum())) - (length.cumsum(0) - length - start).repeat_interleave(length)
        return row.repeat_interleave(length).to(self.starts.device), position.to(self.starts.device)

    def tokens(self) -> tuple[Tensor, Tensor]:
        """The sequence of each of their tokens, one whole sequence behind another, and its position there."""
        return Packing.of(self.lengths, self.starts.device).stored()

    def places(self, row: Tensor, position: Tensor) -> Tensor:
        """Where in the row sequences `row` have `position`, shaped alike; of one behind a sequence's end it means nothing."""
        start = torch.where(position < self.prefixes[row], self.prefix_starts[row], self.starts[row])
        return start + position

    def at(self, states: Tensor, row: Tensor, position: Tensor) -> Tensor:
        """`states` (N, ...) of sequences `row` at `position`, shaped alike; behind a sequence's end stands nothing of use."""
        return states[self.places(row, position).clamp(max=len(states) - 1)]

    def padded(self, states: Tensor, width: int) -> Tensor:
        """(heads, N, D) as (R, heads, width, D); behind a sequence's end stands something that means nothing."""
        row = torch.arange(len(self.starts), device=states.device)[:, None]
        place = self.places(row, torch.arange(width, device=states.device))
        return states[:, place.clamp(max=states.shape[1] - 1)].transpose(0, 1)


@dataclass(frozen=True, slots=True)
class Attended:
    """query (heads, N, D), key and value (key-value heads, N, D), position encoding included; their products' scaling.

    window: how many tokens a query sees, itself included, None for all; output: where gradients to what attention gave,
    (1, N, heads, D), can be taken, None without a graph. It is an edge of the graph, since the tensor would take memory.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    window: int | None = None
    output: GradientEdge | None = None


class PackedSequences:
    """What each layer's attention needs to know of the row, and a note of what it was given, layer by layer."""

    def __init__(self, families: Sequence[Family], device: torch.device) -> None:
        self.families, self._device = families, device
        self.sizes = [family.prefix + sum(family.rests) for family in families]
        self._layers: list[Attended] | None = []

    # What a kernel asks for, made when the first layer calls it: only there the dtype is known that chooses the kernel.
    @cached_property
    def sequences(self) -> Sequences:
        """For one call with all of the row."""
        return Sequences.of([(family.prefix, family.rests) for family in self.families], self._device)

    @cached_property
    def blocks(self) -> list[list["_Block"]]:
        """For a family at a time."""
        return [_blocks(family, self._device) for family in self.families]

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

    Raises DataError for a model whose layers are not all softmax attention that transformers looks up by name, and for one that
    is wrapped.
    """
    if not isinstance(model, PreTrainedModel):
        raise DataError(
            f"The model must be a PreTrainedModel of transformers, but is a {type(model).__name__}: hand over what it wraps (of "
            "peft's PeftModel get_base_model(), of DistributedDataParallel module)."
        )
    unknown = set(getattr(model.config, "layer_types", None) or ()) - _LAYERS
    if model.config._attn_implementation != "sdpa" or unknown:
        raise DataError(
            "The model's layers must attend by sdpa, to all earlier tokens or to a window of them, but have "
            f"{', '.join([str(model.config._attn_implementation), *sorted(unknown)])}: load the model with "
            "attn_implementation='sdpa', or take another."
        )
    _, position = packing.stored()
    sequences = PackedSequences(packing.families, packing.starts.device)
    with AttentionNamed(model, ATTENTION):
        hidden = model.base_model(
            inputs_embeds=embeddings[None], position_ids=position[None], use_cache=False, packed=sequences
        ).last_hidden_state[0]
    return hidden, sequences.noted()


class AttentionNamed:
    """The model attends by the function registered under `name` in the block; may be entered again, but not within itself.

    Raises DataError for a model that recomputes its layers by itself: a layer would run again behind the block.
    """

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        if model.training and model.is_gradient_checkpointing:
            raise DataError(
                "The model must not recompute its layers by gradient_checkpointing_enable() here, where they attend in another "
                "way by then: call gradient_checkpointing_disable() and run the forward within "
                "oar.learner.sharding.recomputed_layers(model), which recomputes them as they were."
            )
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
    if has_kernel(query, key, value):
        scaling = options["scaling"]
        output = attend_by_sequence(query, key, value, packed.sequences, scaling=scaling, window=sliding_window)
    else:
        output = _by_family(module, query, key, value, packed, sliding_window, **options)
    edge = get_gradient_edge(output) if output.requires_grad else None
    packed.note(
        Attended(query[0].detach(), key[0].detach(), value[0].detach(), options["scaling"], sliding_window, edge)
    )
    return output, None


def _by_family(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: PackedSequences,
    sliding_window: int | None,
    **options: Any,
) -> Tensor:
    """(1, N, heads, D): a call for each shared beginning, and one or more for what stands behind it."""
    attend, outputs = AttentionInterface()["sdpa"], []
    parts = zip(*(states.split(packed.sizes, dim=2) for states in (query, key, value)), strict=True)
    for family, blocks, (own, keys, values) in zip(packed.families, packed.blocks, parts, strict=True):
        shared = family.prefix or own.shape[2]  # without a shared beginning it is one sequence
        first = [states[:, :, :shared] for states in (own, keys, values)]
        outputs.append(attend(module, *first, _mask(first[0], 0, sliding_window), **options)[0])
        for block in blocks:
            rest = tuple(block.padded(states) for states in (own, keys, values))
            width = rest[0].shape[2]
            sees_all = sliding_window is None or sliding_window >= shared + width
            if rest[0].is_cpu and sees_all and max(shared, width) > _LONG:
                found = attend_to_prefix_and_own(*rest, *first[1:], scaling=options["scaling"])
            else:
                every = [
                    torch.cat([beginning.expand(len(own_states), -1, -1, -1), own_states], dim=2)
                    for beginning, own_states in zip(first[1:], rest[1:], strict=True)
                ]
                found = attend(module, rest[0], *every, _mask(rest[0], shared, sliding_window), **options)[0]
            outputs.append(found.flatten(0, 1)[block.kept][None])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


@dataclass(frozen=True, slots=True)
class _Block:
    """The rests of some sequences of a family, padded at the right.

    at (G, W): where they stand in its part of the row; kept: those of the G W that are no padding, by number.
    """

    at: Tensor
    kept: Tensor

    def padded(self, states: Tensor) -> Tensor:
        """(1, heads, N, D) of the family as (G, heads, W, D)."""
        return states[0][:, self.at].transpose(0, 1)


def _blocks(family: Family, device: torch.device) -> list[_Block]:
    """Short rests attend together, since calls would cost more than padding; long ones each alone."""
    if not family.prefix:
        return []
    lengths = torch.tensor(family.rests)
    starts, column = family.prefix + lengths.cumsum(0) - lengths, torch.arange(max(family.rests))
    at = (starts[:, None] + column).clamp(max=family.prefix + sum(family.rests) - 1).to(device)
    if max(family.rests) <= _LONG:
        # Numbers, not a mask: a GPU would be waited for to count what a mask holds.
        return [_Block(at, (column < lengths[:, None]).flatten().nonzero()[:, 0].to(device))]
    each = enumerate(family.rests)
    return [_Block(at[row : row + 1, :length], torch.arange(length, device=device)) for row, length in each]


def _mask(query: Tensor, before: int, width: int | None) -> Tensor | None:
    """(1, 1, L, before + L), True where one of L queries behind `before` others may look: at itself and the tokens before it,
    the last `width` - 1 of them where there is a window.

    None where it is the first of its sequence and sees all of it: the kernel leaves out by itself what a causal query does not.
    """
    length = query.shape[2]
    if not before and (width is None or width >= length):
        return None
    back = torch.arange(before, before + length, device=query.device)[:, None]
    back = back - torch.arange(before + length, device=query.device)
    return ((back >= 0) & (back < (width or before + length)))[None, None]


AttentionInterface.register(ATTENTION, _packed_attention)
