"""Attention of recomputed positions: to clean keys where a position was left alone, to new ones where it was recomputed.

Two ways to the same numbers. Both take queries (N, heads, W, D) of N counterfactuals, where heads may be grouped over fewer
key-value heads, and give (N, heads, W, D).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from oar.method.forward.logprobs import Forward

Layers = list[tuple[Tensor, Tensor]]
_SPARE = 8  # dimensions added to a head; kernels like multiples of 8


@dataclass(frozen=True, slots=True)
class Recomputation:
    """N counterfactuals over the rows of a clean forward.

    rows: whose completion, N numbers; embeddings (N, W, H): the new input; positions (N, W): where it stands, ascending;
    valid (N, W): False for padding at the right; read (N, K): columns of W that are read; unseen (N,): a position that no
    later position attends to (the attention knock-out), or None.
    """

    rows: Sequence[int]
    embeddings: Tensor
    positions: Tensor
    valid: Tensor
    read: Tensor
    unseen: Tensor | None = None


class CleanKeys:
    """The clean keys and values (R, key-value heads, L + 1, D) of a forward; what padding writes goes to the last column.

    `dtype`: of the recomputation, where it is not the forward's.
    """

    def __init__(self, forward: Forward, dtype: torch.dtype | None = None) -> None:
        packing = forward.packing
        self.spare = max(packing.lengths)
        self.layers = [
            (
                packing.padded(layer.key, self.spare + 1).to(dtype or layer.key.dtype),
                packing.padded(layer.value, self.spare + 1).to(dtype or layer.value.dtype),
            )
            for layer in forward.layers
        ]


class CopiedKeys:
    """Each counterfactual has a copy of its completion's keys and writes its own over them: causal attention by position.

    Good where counterfactuals of many completions share a forward and most keys are recomputed anyway.
    """

    def __init__(self, clean: CleanKeys, job: Recomputation) -> None:
        self.layers, self.read = clean.layers, job.read
        positions, spare, unseen = job.positions, clean.spare, job.unseen
        self.rows = torch.tensor(job.rows, device=positions.device)
        self._where = torch.where(job.valid, positions, spare)
        key = torch.arange(spare + 1, device=positions.device)
        # Column 0 is seen by all: a padded query must see something, and position 0 is before every other.
        allowed = (key <= self._where[:, :, None]) & (key < spare) | (key == 0)
        if unseen is not None:
            allowed &= (key != unseen[:, None, None]) | (positions == unseen[:, None])[:, :, None]
        self._bias = _bias(allowed, clean.layers)
        self._read_bias = at_columns(self._bias, job.read)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, only_read: bool) -> Tensor:
        """Only the read columns' queries are given where `only_read`; key and value (N, key-value heads, W, D) are all."""
        where = self._where[:, None, :, None].expand_as(key)
        keys, values = (states.index_select(0, self.rows) for states in self.layers[layer])
        keys, values = keys.scatter_(2, where, key), values.scatter_(2, where, value)
        bias = self._read_bias if only_read else self._bias
        groups = query.shape[1] // key.shape[1]
        # One set of heads that share keys at a time: neither keys nor bias have to be copied for each of its heads.
        outputs = [
            scaled_dot_product_attention(
                heads,
                keys[:, at : at + 1].expand(-1, groups, -1, -1),
                values[:, at : at + 1].expand(-1, groups, -1, -1),
                attn_mask=bias[:, None],
                scale=scaling,
            )
            for at, heads in enumerate(query.split(groups, dim=1))
        ]
        return torch.cat(outputs, dim=1)


class SharedKeys:
    """Clean keys are read in place by all counterfactuals of a completion, each one's recomputed keys stand beside them.

    Good where few positions are recomputed, so that copies of the clean keys would outweigh all else. Without a graph.
    """

    def __init__(self, clean: CleanKeys, job: Recomputation) -> None:
        self.layers, self.read = clean.layers, job.read
        positions, spare, unseen = job.positions, clean.spare, job.unseen
        count, width = positions.shape
        # Each counterfactual has the next slot of its completion; a completion with fewer has slots to spare.
        counts = Counter(job.rows)
        self._slots = max(counts.values())
        slots = {row: iter(range(at * self._slots, (at + 1) * self._slots)) for at, row in enumerate(counts)}
        self.completions = torch.tensor(list(counts), device=positions.device)
        self._place = torch.tensor([next(slots[row]) for row in job.rows], device=positions.device)

        where = torch.where(job.valid, positions, spare)
        recomputed = torch.zeros(count, spare + 1, dtype=torch.bool, device=positions.device).scatter_(1, where, True)
        key = torch.arange(spare, device=positions.device)
        bias = pad(_bias((key < positions[:, :, None]) & ~recomputed[:, None, :spare], clean.layers), (0, 1))
        self._bias, self._read_bias = self._by_completion(bias), self._by_completion(at_columns(bias, job.read))
        # Columns ascend by position and padding comes last, so a row's own keys need no more than the order of columns.
        column = torch.arange(width, device=positions.device)
        own = (column <= column[:, None]).expand(count, width, width)
        if unseen is not None:
            own = own & ((positions != unseen[:, None])[:, None] | (column == column[:, None]))
        own_bias = _bias(own, clean.layers)
        self._own_bias, self._own_read_bias = own_bias, at_columns(own_bias, job.read)

    @torch.no_grad()
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, only_read: bool) -> Tensor:
        """Only the read columns' queries are given where `only_read`; key and value (N, key-value heads, W, D) are all.

        A row's own keys are few: their attention is worked out first. To the clean keys comes one more that stands for all
        of them: its score is the log of their sum, and its value marks, in a spare dimension, the share that is theirs.
        """
        heads, size = query.shape[1], query.shape[3]
        groups = heads // key.shape[1]
        bias, own_bias = (self._read_bias, self._own_read_bias) if only_read else (self._bias, self._own_bias)
        own = (query * scaling) @ key.repeat_interleave(groups, 1).transpose(2, 3) + own_bias[:, None]
        own_sum = own.float().logsumexp(dim=-1, keepdim=True)
        own_output = (own.float() - own_sum).exp().to(query.dtype) @ value.repeat_interleave(groups, 1)

        # In two parts, so that nothing of the sum is lost in half precision.
        high = (own_sum / scaling).to(query.dtype)
        low = (own_sum / scaling - high.float()).to(query.dtype)
        asked = torch.cat([query, high, low, query.new_zeros(*query.shape[:3], _SPARE - 2)], dim=-1)
        keys, values = (self._with_stand_in(states[self.completions, :, :-1]) for states in self.layers[layer])
        output = scaled_dot_product_attention(
            self._by_completion(asked.transpose(1, 2)).transpose(1, 2),
            keys.repeat_interleave(groups, 1),
            values.repeat_interleave(groups, 1),
            attn_mask=bias[:, None],
            scale=scaling,
        )
        output = output.transpose(1, 2).unflatten(1, (self._slots, -1)).flatten(0, 1)[self._place].transpose(1, 2)
        return output[..., :size] + output[..., size : size + 1] * own_output

    def _by_completion(self, states: Tensor) -> Tensor:
        """(N, W, ...) as (completions, slots x W, ...), 0 in a slot that is to spare."""
        placed = states.new_zeros(len(self.completions) * self._slots, *states.shape[1:])
        placed[self._place] = states
        return placed.unflatten(0, (-1, self._slots)).flatten(1, 2)

    @staticmethod
    def _with_stand_in(states: Tensor) -> Tensor:
        """Keys or values (..., L, D) with the stand-in behind them, (..., L + 1, D + spare): zero but for a spare 1."""
        with_spare = pad(states, (0, _SPARE, 0, 1))
        with_spare[..., -1, states.shape[-1] : states.shape[-1] + 2] = 1
        return with_spare


def at_columns(states: Tensor, columns: Tensor, dim: int = 1) -> Tensor:
    """Columns (N, K) of dimension `dim` of states (N, ...)."""
    return states.gather(dim, _index(states, columns, dim))


def spread_columns(states: Tensor, columns: Tensor, width: int) -> Tensor:
    """The inverse: states (N, K, ...) at columns (N, K) of `width`, 0 elsewhere."""
    empty = states.new_zeros(states.shape[0], width, *states.shape[2:])
    return empty.scatter(1, _index(states, columns, 1), states)


def _index(states: Tensor, columns: Tensor, dim: int) -> Tensor:
    shape, full = [1] * states.dim(), list(states.shape)
    shape[0], shape[dim] = columns.shape
    full[dim] = columns.shape[1]
    return columns.view(shape).expand(full)


def _bias(allowed: Tensor, layers: Layers) -> Tensor:
    """0 where a query may look, minus infinity elsewhere."""
    return torch.zeros(allowed.shape, dtype=layers[0][0].dtype, device=allowed.device).masked_fill_(
        ~allowed, -torch.inf
    )
