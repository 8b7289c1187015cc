"""What FlashAttention's kernel for sequences of any lengths is asked. It needs a GPU: here plain arithmetic takes its place."""

import pytest
import torch
from torch.nn.attention import varlen
from torch.testing import assert_close

from oar.learner.sharding import recomputed_layers
from oar.method.forward import packing as packing_module
from oar.method.forward.logprobs import pack, run_forward
from oar.method.forward.variable_length import Sequences, has_kernel
from tests.models import PAD, tiny_model, windowed_model

CPU = torch.device("cpu")
LENGTHS, PROMPTS = torch.tensor([6, 4, 7, 5, 1]), torch.tensor([4, 3, 4, 2, 1])


def each(query, key, query_ends, key_ends, window):
    """Row and head of each query, the head and the rows of its keys: a sequence's last query stands beside its last key."""
    repeats = query.shape[1] // key.shape[1]
    for sequence in range(len(query_ends) - 1):
        rows, columns = (range(int(ends[sequence]), int(ends[sequence + 1])) for ends in (query_ends, key_ends))
        for place, row in enumerate(rows):
            last = len(columns) - len(rows) + place
            first = 0 if window[0] < 0 else max(0, last - window[0])
            for head in range(query.shape[1]):
                yield (row, head), (list(columns)[first : last + 1], head // repeats)


@pytest.fixture(scope="module", autouse=True)
def kernel_of_the_cpu():
    """torch's own function up to the kernel, which a CPU has none of."""

    @varlen._varlen_attn.register_kernel("cpu")
    def forward(
        query, key, value, query_ends, key_ends, max_q, max_k, is_causal=False, scale=None, window_size=None, *_
    ):
        assert max_q == query_ends.diff().max()
        assert max_k == key_ends.diff().max()
        assert query_ends.dtype == key_ends.dtype == torch.int32
        assert window_size[1] == 0
        output = torch.zeros_like(query)
        for own, seen in each(query, key, query_ends, key_ends, window_size):
            output[own] = (key[seen] @ query[own] * scale).softmax(0) @ value[seen]
        return output, torch.empty(query.shape[1::-1]), torch.empty(2, dtype=torch.uint64)

    @varlen._varlen_attn_backward.register_kernel("cpu")
    def backward(grad, query, key, value, out, lse, query_ends, key_ends, mq, mk, causal, rng, scale=None, window=None):
        to_query, to_key, to_value = (torch.zeros_like(states) for states in (query, key, value))
        for own, seen in each(query, key, query_ends, key_ends, window):
            weights = (key[seen] @ query[own] * scale).softmax(0)
            to_value[seen] += weights[:, None] * grad[own]
            gain = value[seen] @ grad[own]
            to_score = weights * (gain - weights @ gain) * scale
            to_query[own] = to_score @ key[seen]
            to_key[seen] += to_score[:, None] * query[own]
        return to_query, to_key, to_value


def alike_in_twos():
    """Rows 0 and 2 begin alike, for three tokens that stand in the row once; the others stand alone, one of them of one token."""
    ids = torch.randint(4, 40, (5, 7), generator=torch.Generator().manual_seed(0))
    ids[2, :4] = ids[0, :4]
    return ids.masked_fill(torch.arange(7) >= LENGTHS[:, None], PAD)


def test_sequences_by_hand():
    """A family of two with three tokens in common, then one sequence alone."""
    found = Sequences.of([(3, [2, 1]), (0, [4])], CPU)
    assert found.keys.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8, 9]
    assert found.query_ends.tolist() == [0, 3, 5, 6, 10]
    assert found.key_ends.tolist() == [0, 3, 8, 12, 16]
    assert (found.longest_query, found.longest_key) == (4, 5)
    assert Sequences.of([(0, [4]), (0, [2])], CPU).keys is None


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("make", [tiny_model, windowed_model])
def test_states_and_gradients_are_those_of_a_family_at_a_time(make, recomputed, monkeypatch):
    model, ids = make(), alike_in_twos()
    packed, packing = pack(ids, LENGTHS, PROMPTS)
    assert len(packed) == LENGTHS.sum() - 3

    def run():
        embeddings = model.get_input_embeddings()(packed).detach().requires_grad_()
        with recomputed_layers(model, recomputed):
            forward = run_forward(model, embeddings, packing)
        weights = torch.linspace(-1, 1, forward.hidden.numel()).view_as(forward.hidden)
        edges = [layer.output for layer in forward.layers if layer.output is not None]
        return forward.hidden, *torch.autograd.grad((forward.hidden * weights).sum(), [embeddings, *edges])

    expected = run()
    monkeypatch.setattr(packing_module, "has_kernel", lambda *_: True)
    monkeypatch.delattr(packing_module, "_by_family")
    for one, other in zip(run(), expected, strict=True):
        # A gradient of 49 is summed from terms as large, so float32 leaves its small entries as coarse as its large ones.
        assert_close(one, other, atol=2e-6 * float(other.detach().abs().max()), rtol=1e-4)


def test_a_cpu_has_no_kernel():
    states = [torch.zeros(1, heads, 4, 16, dtype=torch.bfloat16) for heads in (4, 2, 2)]
    assert not has_kernel(*states)
