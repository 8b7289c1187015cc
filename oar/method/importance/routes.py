"""Through which later positions a token reaches the outcome: what a narrow counterfactual has to recompute."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.method.importance.clean import CleanPass


@torch.no_grad()
def strongest_routes(clean: CleanPass, count: int, first: Tensor, end: Tensor, max_tokens: int) -> Tensor:
    """(R, T, count) positions, ascending, through which reasoning token t reaches the outcome most strongly.

    Candidates are the positions from `first` (R, T) up to but without `end` (R,); where they are fewer than `count`, the
    length L of the forward stands in for the rest.

    With A_l the attention of layer l, mean over its heads, and r_l(s) how much of the outcome passes through position s
    behind layer l, the strength of s is the sum over l of A_l[s, t] r_l(s): what s takes from t, times what is taken from
    s. r is attention rolled back from the positions that are read (attention rollout, Abnar & Zuidema 2020,
    arXiv 2005.00928): behind the last layer it is 1 there and 0 elsewhere, and r_(l-1) = r_l + A_l' r_l. Nothing but the
    clean forward's queries and keys is needed.
    """
    shown, packing = clean.shown, clean.forward.packing
    rows, length = len(packing.lengths), max(packing.lengths)
    layers = [
        _Layer(packing.padded(layer.query, length), packing.padded(layer.key, length), layer.scaling)
        for layer in clean.forward.layers
    ]
    # All heads' scores of a block of queries or keys are held: as many as one head's of `max_tokens` tokens.
    block = max(1, max_tokens // (rows * layers[0].query.shape[1]))
    reach = torch.zeros(rows, length, device=first.device)
    reach.scatter_add_(1, shown.read_positions, shown.read_mask.float()).clamp_(max=1)
    passed = []
    for layer in reversed(layers):
        log_sums, earlier = _rolled_back(layer, reach, block)
        passed.append((layer, log_sums, reach))
        reach = earlier

    position = torch.arange(length, device=first.device)
    chosen = torch.full((*first.shape, count), length, device=first.device)
    for some in torch.arange(first.shape[1], device=first.device).split(block):
        at = shown.reasoning_positions[:, some].clamp(max=length - 1)
        strength = torch.zeros(rows, len(some), length, device=first.device)
        # Behind the last layer only positions that are read reach the outcome, and these are recomputed anyway.
        for layer, log_sums, reach in passed[1:]:
            strength += _attended_from(layer, at, log_sums) * reach[:, None]
        candidate = (position >= first[:, some, None]) & (position < end[:, None, None])
        best = strength.masked_fill(~candidate, -torch.inf).topk(min(count, length), dim=-1)
        chosen[:, some, : best.indices.shape[2]] = best.indices.masked_fill(best.values == -torch.inf, length)
    return chosen.sort(dim=-1).values


@dataclass(frozen=True, slots=True)
class _Layer:
    """query (R, heads, L, D) and key (R, key-value heads, L, D) of one layer, and their products' scaling."""

    query: Tensor
    key: Tensor
    scaling: float


def _rolled_back(layer: _Layer, reach: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The log of what each query's softmax divides by, (R, heads, L), and `reach` (R, L) in front of the layer."""
    rows, heads, length, _ = layer.query.shape
    log_sums, earlier = torch.empty(rows, heads, length, device=reach.device), reach.clone()
    position = torch.arange(length, device=reach.device)
    for start in range(0, length, block):
        seen = min(start + block, length)
        some = position[start:seen]
        weights = attention_products(layer.query[:, :, some], layer.key[:, :, :seen], layer.scaling)
        weights.masked_fill_(position[:seen] > some[:, None], -torch.inf)
        largest = weights.amax(dim=-1, keepdim=True)
        sums = weights.sub_(largest).exp_().sum(dim=-1)
        log_sums[:, :, some] = largest[..., 0] + sums.log()
        # The mean over heads of what each query takes, times its reach, without a pass to normalise.
        shares = reach[:, None, some] / (heads * sums)
        earlier[:, :seen] += (shares.flatten(1)[:, None] @ weights.flatten(1, 2))[:, 0]
    return log_sums, earlier


def _attended_from(layer: _Layer, at: Tensor, log_sums: Tensor) -> Tensor:
    """(R, N, L): what each later query attends to keys at (R, N), mean over the heads; of earlier ones it means nothing."""
    kv_heads, size = layer.key.shape[1], layer.key.shape[3]
    keys = layer.key.gather(2, at[:, None, :, None].expand(-1, kv_heads, -1, size))
    weights = attention_products(layer.query, keys, layer.scaling).sub_(log_sums[..., None]).exp_()
    return weights.mean(dim=1).transpose(1, 2)


def attention_products(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    """(R, heads, Q, K) in float32, of queries (R, heads, Q, D) and keys (R, key-value heads, K, D), times the scaling."""
    rows, heads, count, size = query.shape
    folded = query.reshape(rows, key.shape[1], heads // key.shape[1] * count, size)
    return (folded @ key.transpose(2, 3)).view(rows, heads, count, -1).float().mul_(scaling)
