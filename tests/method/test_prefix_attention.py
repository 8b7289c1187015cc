"""Attention in two calls that are merged, against one softmax over all keys, written out."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from oar.method.forward.prefix_attention import attend_to_prefix_and_own


def by_softmax(query, key, value, prefix_key, prefix_value, scaling):
    """(G, W, heads, D), a completion and a head at a time."""
    repeats, rows = query.shape[1] // key.shape[1], []
    for row in range(len(query)):
        heads = []
        for head in range(query.shape[1]):
            keys = torch.cat([prefix_key[0, head // repeats], key[row, head // repeats]])
            values = torch.cat([prefix_value[0, head // repeats], value[row, head // repeats]])
            scores = scaling * query[row, head] @ keys.T
            behind = torch.ones_like(scores).triu(len(keys) - len(scores) + 1).bool()
            heads.append(scores.masked_fill(behind, -torch.inf).softmax(-1) @ values)
        rows.append(torch.stack(heads, dim=1))
    return torch.stack(rows)


def drawn(dtype, completions, heads, key_heads, width, prefix, size=8):
    generator = torch.Generator().manual_seed(0)
    shapes = [(completions, heads, width), *[(completions, key_heads, width)] * 2, *[(1, key_heads, prefix)] * 2]
    return [torch.randn(*shape, size, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("dtype", "close"),
    [(torch.float64, {"atol": 1e-12, "rtol": 1e-9}), (torch.float32, {"atol": 2e-5, "rtol": 1e-4})],
)
@pytest.mark.parametrize(
    ("completions", "heads", "key_heads", "width", "prefix"),
    [(1, 2, 2, 1, 1), (3, 4, 2, 7, 5), (2, 2, 1, 600, 40), (2, 2, 2, 3, 700)],
)
def test_output_and_gradients_are_those_of_one_softmax(dtype, close, completions, heads, key_heads, width, prefix):
    states = drawn(dtype, completions, heads, key_heads, width, prefix)
    found, expected = attend_to_prefix_and_own(*states, scaling=0.7), by_softmax(*states, 0.7)
    assert_close(found, expected, **close)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = [torch.autograd.grad((output * weights).sum(), states) for output in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        assert_close(one, other, **close)


def test_a_part_that_outweighs_the_other_by_far_leaves_no_infinity():
    """exp of a log-sum-exp of 100s overflows; the merge must take differences alone."""
    query, key, value, prefix_key, prefix_value = (state.detach() for state in drawn(torch.float32, 2, 2, 2, 4, 3))
    found = attend_to_prefix_and_own(400 * query, key, value, 400 * prefix_key, prefix_value, scaling=1.0)
    expected = by_softmax(*(state.double() for state in (400 * query, key, value, 400 * prefix_key, prefix_value)), 1.0)
    assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)


def test_in_bfloat16_it_is_about_as_near_as_one_call():
    """Sums of exponentials in bfloat16 would be off by percents."""
    states = [state.detach() for state in drawn(torch.bfloat16, 2, 2, 2, 520, 64)]
    query, key, value, prefix_key, prefix_value = states
    every = [
        torch.cat([prefix.expand(2, -1, -1, -1), own], dim=2)
        for prefix, own in ((prefix_key, key), (prefix_value, value))
    ]
    seen = torch.ones(520, 584).tril(64).bool()
    one_call = scaled_dot_product_attention(query, *every, attn_mask=seen, scale=0.5).transpose(1, 2)
    expected = by_softmax(*(state.double() for state in states), 0.5)
    found = attend_to_prefix_and_own(*states, scaling=0.5)
    assert found.dtype == torch.bfloat16
    assert (found - expected).square().mean() <= 4 * (one_call - expected).square().mean()
