"""Run a model again at chosen positions only: all other positions keep the keys and values of the clean forward.

Changing a token leaves everything before it as it was, so a counterfactual needs the forward of its suffix alone. Many of
them share one forward: row n of a `Recomputation` is one counterfactual, whatever completion it belongs to. A recomputed
position attends by its position to the clean keys of its completion and to the recomputed ones of its own row
(recomputed_attention.py). In the last layer only the positions that are read are needed, and only they are computed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from oar.common.errors import DataError
from oar.method.forward.packing import AttentionNamed
from oar.method.importance.recomputed_attention import (
    CleanKeys,
    CopiedKeys,
    Recomputation,
    SharedKeys,
    at_columns,
    spread_columns,
)

_ATTENTION = (
    "oar_recomputation"  # no mask is registered for it, so transformers makes none, and need not look at positions
)
_WORTH = 10  # keys; sharing works out scores of a column with its own row's columns, copying writes a completion's keys


@contextmanager
def recompute(model: PreTrainedModel, clean: CleanKeys, job: Recomputation) -> Iterator[Tensor]:
    """The last hidden states (N, K, H) at the read positions, within the block differentiable to `job.embeddings`.

    Only within: where layers are checkpointed, a backward runs them again, and they have to do what they did before.
    Raises DataError for a model that is not built like Llama, or whose attention is more than causal softmax attention.
    """
    last_projections = _last_projections(model)
    build = SharedKeys if _shares(job, clean.spare) else CopiedKeys
    attention = build(clean, job)
    with _only_where_read(last_projections, job.read, width=job.positions.shape[1]):
        with AttentionNamed(model, _ATTENTION):
            hidden = model.base_model(
                inputs_embeds=job.embeddings,
                # A padded slot may stand anywhere: nothing reads it.
                position_ids=torch.where(job.valid, job.positions, 0),
                use_cache=False,
                recomputation=attention,
            ).last_hidden_state
        yield at_columns(hidden, job.read)


def _shares(job: Recomputation, length: int) -> bool:
    """Whether clean keys are better read in place: few columns W for completions of `length` tokens, and like numbers of
    counterfactuals for each completion.

    A row's W x W scores among its own columns are all held in memory, a copy is of `length` keys; a completion with few
    counterfactuals wastes slots. Sharing has no graph.
    """
    counts = Counter(job.rows)
    slots = max(counts.values()) * len(counts)
    narrow = job.positions.shape[1] ** 2 <= _WORTH * length
    return narrow and slots < 1.25 * len(job.rows) and not job.embeddings.requires_grad


def _recomputed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    recomputation: CopiedKeys | SharedKeys,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: query (N, heads, W, D), key and value (N, key-value heads, W, D)."""
    if options.get("softcap") is not None or options.get("sliding_window") is not None or "s_aux" in options:
        raise DataError(
            "Counterfactuals need plain causal softmax attention, but this model caps scores, slides a window or has "
            "attention sinks: use method=oar_gn, which needs none."
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    width, is_last = query.shape[2], layer == len(recomputation.layers) - 1
    if is_last:
        query = at_columns(query, recomputation.read, 2)
    output = recomputation.attend(layer, query, key, value, scaling, only_read=is_last).transpose(1, 2)
    return (spread_columns(output, recomputation.read, width) if is_last else output), None


AttentionInterface.register(_ATTENTION, _recomputed_attention)


def _last_projections(model: PreTrainedModel) -> tuple[nn.Module, ...]:
    """What the last layer computes for each position on its own: queries, attention's output projection and the feed-forward."""
    try:
        decoder: Any = model.base_model
        last = decoder.layers[-1]
        return last.self_attn.q_proj, last.self_attn.o_proj, last.mlp
    except AttributeError as missing:
        raise DataError(
            "Counterfactuals need a decoder built like Llama or Qwen (layers with self_attn.o_proj and mlp), but "
            f"{type(model).__name__} is not: {missing}."
        ) from missing


@contextmanager
def _only_where_read(modules: Sequence[nn.Module], read: Tensor, width: int) -> Iterator[None]:
    """These modules see the read columns only; elsewhere their output is 0."""

    def cut(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (at_columns(given[0], read),)

    def spread(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return spread_columns(output, read, width)

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(cut).remove)
            hooks.callback(module.register_forward_hook(spread).remove)
        yield
