"""The two ways to attend give the same numbers, and they are those of attention written down plainly."""

import pytest
import torch

from oar.method.forward.logprobs import Forward
from oar.method.forward.packing import Attended, Packing
from oar.method.importance.recomputed_attention import CleanKeys, CopiedKeys, Recomputation, SharedKeys, at_columns

COUNT, HEADS, KV_HEADS, SIZE, LENGTH = 3, 4, 2, 8, 12
POSITIONS = torch.tensor([[3, 4, 5, 9, 10], [4, 5, 9, 10, 0], [8, 9, 10, 0, 0]])
VALID = torch.tensor([[True] * 5, [True] * 4 + [False], [True] * 3 + [False] * 2])
READ = torch.tensor([[3, 4], [2, 3], [1, 2]])
ROWS = (1, 0, 1)  # two completions, and one of them has more counterfactuals


def states(*shape, seed, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(scale, dtype):
    width = POSITIONS.shape[1]
    clean = [
        (states(2, KV_HEADS, LENGTH, SIZE, seed=i), states(2, KV_HEADS, LENGTH, SIZE, seed=9 + i)) for i in range(1)
    ]
    layers = [tuple(one.to(dtype) for one in layer) for layer in clean]
    query = states(COUNT, HEADS, width, SIZE, seed=20, scale=scale).to(dtype)
    key, value = (states(COUNT, KV_HEADS, width, SIZE, seed=s).to(dtype) for s in (21, 22))
    return layers, query, key, value


def attend(kind, layers, query, key, value, *, unseen, only_read):
    # The keys and values themselves take the place of the forward they come from.
    layers = [Attended(query, *(one.transpose(0, 1).flatten(1, 2) for one in layer), SIZE**-0.5) for layer in layers]
    clean = CleanKeys(Forward(query, query, layers, Packing.of([LENGTH, LENGTH], query.device)))
    embeddings = query.new_zeros(COUNT, POSITIONS.shape[1], 1)
    attention = kind(clean, Recomputation(ROWS, embeddings, POSITIONS, VALID, READ, unseen))
    query = at_columns(query, READ, 2) if only_read else query
    return attention.attend(0, query, key, value, SIZE**-0.5, only_read=only_read)


def plainly(layers, query, key, value, unseen):
    """One counterfactual, head and query at a time, in float64: a list of the keys that it may see."""
    output = torch.zeros(query.shape, dtype=torch.float64)
    for n in range(COUNT):
        keys, values = (one[ROWS[n]].double() for one in layers[0])
        own = {int(p): column for column, p in enumerate(POSITIONS[n]) if VALID[n, column]}
        for position, column in own.items():
            for head in range(HEADS):
                shared = head * KV_HEADS // HEADS
                seen_keys, seen_values = [], []
                for p in range(position + 1):
                    if unseen is not None and p == int(unseen[n]) and p != position:
                        continue
                    new = p in own
                    seen_keys.append(key[n, shared, own[p]].double() if new else keys[shared, p])
                    seen_values.append(value[n, shared, own[p]].double() if new else values[shared, p])
                scores = torch.stack(seen_keys) @ query[n, head, column].double() * SIZE**-0.5
                output[n, head, column] = scores.softmax(0) @ torch.stack(seen_values)
    return output


@pytest.mark.parametrize("unseen", [None, POSITIONS[:, 0]])
@pytest.mark.parametrize("kind", [CopiedKeys, SharedKeys])
def test_equals_attention_written_down_plainly(kind, unseen):
    tensors = given(1.0, torch.float32)
    expected = plainly(*tensors, unseen)
    found = attend(kind, *tensors, unseen=unseen, only_read=False).double()
    chosen = VALID[:, None, :, None].expand_as(expected)
    torch.testing.assert_close(found[chosen], expected[chosen], atol=1e-5, rtol=1e-5)
    read = attend(kind, *tensors, unseen=unseen, only_read=True).double()
    torch.testing.assert_close(read, at_columns(expected, READ, 2), atol=1e-5, rtol=1e-5)


def test_large_scores_lose_nothing_in_half_precision():
    """The stand-in's score can be a number of which bfloat16 keeps but two digits."""
    tensors = given(30.0, torch.bfloat16)
    expected = plainly(*tensors, None)
    chosen = VALID[:, None, :, None].expand_as(expected)
    errors = {
        kind: float((attend(kind, *tensors, unseen=None, only_read=False).double() - expected)[chosen].abs().max())
        for kind in (CopiedKeys, SharedKeys)
    }
    assert errors[SharedKeys] < 3 * errors[CopiedKeys] + 0.01
