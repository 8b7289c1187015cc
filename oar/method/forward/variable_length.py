"""Attention of a whole packed row in one call of FlashAttention's kernel for sequences of any lengths, where a GPU has it.

Each completion is a sequence of its own queries, whose keys are those of its prompt and its own. The kernel sets the last query
of a sequence beside its last key, so a causal query sees the whole beginning and its own tokens up to itself. Nothing is padded
and no mask is kept. The keys of a beginning are read once more for each completion, but computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.varlen import varlen_attn

# torch before 2.12 has one for as many key-value heads as queries have.
_SHARES_KEYS = "enable_gqa" in signature(varlen_attn).parameters


@dataclass(frozen=True, slots=True)
class Sequences:
    """S sequences that stand in a row of N tokens, one behind another.

    keys (K,): where in the row the keys of each stand, one sequence behind another; None where they stand as in the row.
    query_ends, key_ends (S + 1,), int32: where each sequence ends among the queries, and among the keys.
    """

    keys: Tensor | None
    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, families: Sequence[tuple[int, Sequence[int]]], device: torch.device) -> "Sequences":
        """Of each family: how many tokens its sequences have in common, and how many more each has. The shared beginning is a
        sequence too.
        """
        queries, keys, places, start = [], [], [], 0
        for prefix, rests in families:
            beginning, own = torch.arange(start, start + prefix), start + prefix
            if prefix:
                queries.append(prefix)
                keys.append(prefix)
                places.append(beginning)
            for rest in rests:
                queries.append(rest)
                keys.append(prefix + rest)
                places += [beginning, torch.arange(own, own + rest)]
                own += rest
            start = own
        ends = torch.tensor([[0, *queries], [0, *keys]]).cumsum(dim=1).to(torch.int32).to(device)
        shared = any(prefix for prefix, _ in families)
        return cls(torch.cat(places).to(device) if shared else None, ends[0], ends[1], max(queries), max(keys))


def has_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes states (1, heads, N, D) like these: on a GPU that it is built for, in 16 bits."""
    several = query.shape[1] != key.shape[1]
    fits = can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, False, several))
    return _SHARES_KEYS and query.shape[-1] % 8 == 0 and fits


def attend_by_sequence(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, *, scaling: float, window: int | None
) -> Tensor:
    """(1, N, heads, D): what each query (1, heads, N, D) sees of the tokens up to itself, or of the last `window` of these.

    key, value: (1, key-value heads, N, D).
    """
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    if sequences.keys is not None:
        keys, values = keys[sequences.keys], values[sequences.keys]
    output = varlen_attn(
        queries,
        keys,
        values,
        sequences.query_ends,
        sequences.key_ends,
        sequences.longest_query,
        sequences.longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),  # a query itself is not counted
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, Tensor)  # a pair where the log-sum-exp is asked for
    return output[None]
