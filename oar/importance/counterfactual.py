"""Run a model again at chosen positions only: all other positions keep the keys and values of the clean forward.

Changing a token leaves everything before it as it was, so a counterfactual needs the forward of its suffix alone. Many of
them share one forward: row n of a `Recomputation` is one counterfactual, whatever completion it belongs to. Its keys are
the clean ones of its completion with those of the recomputed positions written over, so attention is plain causal
attention by position. In the last layer only the positions that are read are needed, and only they are computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from oar.errors import DataError
from oar.scoring import Forward

_ATTENTION = "oar_recomputation"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """N counterfactuals over the rows of a clean forward.

    rows (N,): whose completion; embeddings (N, W, H): the new input; positions (N, W): where it stands, ascending;
    valid (N, W): False for padding at the right; read (N, K): columns of W that are read; unseen (N,): a position that no
    later position attends to (the attention knock-out), or None.
    """

    rows: Tensor
    embeddings: Tensor
    positions: Tensor
    valid: Tensor
    read: Tensor
    unseen: Tensor | None = None


class CleanKeys:
    """The clean keys and values of a forward, with one spare column at the end for what padding writes."""

    def __init__(self, forward: Forward) -> None:
        self.layers = [(pad(k.detach(), (0, 0, 0, 1)), pad(v.detach(), (0, 0, 0, 1))) for k, v in forward.keys_values]
        self.spare = forward.hidden.shape[1]


def recompute(model: PreTrainedModel, clean: CleanKeys, job: Recomputation) -> Tensor:
    """The last hidden states (N, K, H) at the read positions; differentiable to `job.embeddings`.

    Raises DataError for a model that is not built like Llama, or whose attention is more than causal softmax attention.
    """
    last_projections = _last_projections(model)
    positions = torch.where(job.valid, job.positions, clean.spare)
    key = torch.arange(clean.spare + 1, device=positions.device)
    # Column 0 is seen by all: a padded query must see something, and position 0 is before every other.
    allowed = (key <= positions[:, :, None]) & (key < clean.spare) | (key == 0)
    if job.unseen is not None:
        allowed &= (key != job.unseen[:, None, None]) | (positions == job.unseen[:, None])[:, :, None]
    bias = torch.zeros(allowed.shape, dtype=job.embeddings.dtype, device=allowed.device)
    bias = bias.masked_fill_(~allowed, -torch.inf)
    attention = _Attention(
        clean, job.rows, positions, job.read, _grouped(model, bias), _grouped(model, _at(bias, job.read))
    )
    with _attention_of(model), _only_where_read(last_projections, job.read, width=positions.shape[1]):
        hidden = model.base_model(
            inputs_embeds=job.embeddings,
            # A padded slot may stand anywhere: nothing reads it.
            position_ids=torch.where(job.valid, job.positions, 0),
            use_cache=False,
            recomputation=attention,
        ).last_hidden_state
    return _at(hidden, job.read)


@dataclass(frozen=True, slots=True)
class _Attention:
    """What the attention of every layer is handed through the model's keyword arguments: biases (N, 1, heads x W, L)."""

    clean: CleanKeys
    rows: Tensor
    positions: Tensor
    read: Tensor
    bias: Tensor
    last_bias: Tensor


def _grouped(model: PreTrainedModel, bias: Tensor) -> Tensor:
    """The bias (N, W, L) for queries of all the heads that share keys, standing behind each other: (N, 1, heads x W, L)."""
    return bias.repeat(1, model.config.num_attention_heads // model.config.num_key_value_heads, 1)[:, None]


def _recomputed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    recomputation: _Attention,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of the recomputed queries (N, heads, W, D) to all positions of their completion; heads may be grouped."""
    if options.get("softcap") is not None or options.get("sliding_window") is not None or "s_aux" in options:
        raise DataError(
            "OAR-P needs plain causal softmax attention, but this model caps scores, slides a window or has attention "
            "sinks: use method=oar_g or method=oar_gn."
        )
    rows, bias = recomputation.rows, recomputation.bias
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    (rows_n, heads, width, size), kv_heads = query.shape, key.shape[1]
    where = recomputation.positions[:, None, :, None].expand(rows_n, kv_heads, width, size)
    keys, values = (states.index_select(0, rows) for states in recomputation.clean.layers[layer])
    keys, values = keys.scatter_(2, where, key), values.scatter_(2, where, value)
    is_last = layer == len(recomputation.clean.layers) - 1
    if is_last:
        query, bias = _at(query, recomputation.read, 2), recomputation.last_bias
    # Heads that share keys stand behind each other as queries, so that no keys are copied for them.
    queries = query.shape[2]
    query = query.reshape(rows_n, kv_heads, heads // kv_heads * queries, size)
    output = scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scaling)
    output = output.view(rows_n, heads, queries, size).transpose(1, 2)
    if is_last:
        output = _spread(output, recomputation.read, width)
    return output, None


def _no_mask(*args: Any, **options: Any) -> None:
    """The recomputation brings its own."""


AttentionInterface.register(_ATTENTION, _recomputed_attention)
AttentionMaskInterface.register(_ATTENTION, _no_mask)


@contextmanager
def _attention_of(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _last_projections(model: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """What the last layer computes for each position on its own: attention's output projection and the feed-forward."""
    try:
        decoder: Any = model.base_model
        last = decoder.layers[-1]
        return last.self_attn.o_proj, last.mlp
    except AttributeError as missing:
        raise DataError(
            "Counterfactuals need a decoder built like Llama or Qwen (layers with self_attn.o_proj and mlp), but "
            f"{type(model).__name__} is not: {missing}."
        ) from missing


@contextmanager
def _only_where_read(modules: Sequence[nn.Module], read: Tensor, width: int) -> Iterator[None]:
    """These modules see the read columns only; elsewhere their output is 0."""

    def cut(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_at(given[0], read),)

    def spread(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return _spread(output, read, width)

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(cut).remove)
            hooks.callback(module.register_forward_hook(spread).remove)
        yield


def _at(states: Tensor, read: Tensor, dim: int = 1) -> Tensor:
    """Columns `read` (N, K) of dimension `dim` of states (N, ...)."""
    return states.gather(dim, _index(states, read, dim))


def _spread(states: Tensor, read: Tensor, width: int) -> Tensor:
    """The inverse: states (N, K, ...) at columns `read` of `width`, 0 elsewhere."""
    empty = states.new_zeros(states.shape[0], width, *states.shape[2:])
    return empty.scatter(1, _index(states, read, 1), states)


def _index(states: Tensor, read: Tensor, dim: int) -> Tensor:
    shape = [1] * states.dim()
    shape[0], shape[dim] = read.shape
    full = list(states.shape)
    full[dim] = read.shape[1]
    return read.view(shape).expand(full)
