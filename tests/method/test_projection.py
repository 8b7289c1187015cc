"""Logprobs and entropy in blocks against all logits at once, their gradients against autograd and finite differences."""

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from oar.common.errors import DataError
from oar.method.forward import projection
from oar.method.forward.projection import token_scores

N, H, V = 11, 6, 37


@pytest.fixture(autouse=True, params=[0, 3 * 5 * N, N * V], ids=["none kept", "three kept", "all kept"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 5 columns, the last one narrower; the backward finds none, some or all of them."""
    monkeypatch.setattr(projection, "CPU_BLOCK", 5 * N + 3)
    monkeypatch.setattr(projection, "KEPT", request.param)


def case(dtype: torch.dtype, *, bias: bool = False, spread: float = 3.0) -> tuple[Tensor, nn.Linear, Tensor]:
    """Hidden states, a head whose logits are far from uniform, and tokens; the first and the last word are among them."""
    torch.manual_seed(0)
    hidden = torch.randn(N, H, dtype=dtype, requires_grad=True)
    head = nn.Linear(H, V, bias=bias, dtype=dtype)
    with torch.no_grad():
        head.weight.mul_(spread)
    tokens = torch.randint(V, (N,))
    tokens[0], tokens[1] = 0, V - 1
    return hidden, head, tokens


def at_once(hidden: Tensor, head: nn.Linear, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """All logits, in the precision of the hidden states."""
    logprobs = (head(hidden).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature).log_softmax(dim=-1)
    return logprobs[range(len(tokens)), tokens], -(logprobs.exp() * logprobs).sum(dim=-1)


def gradients(function, hidden: Tensor, head: nn.Linear, tokens: Tensor, temperature: float) -> list[Tensor]:
    weights = torch.linspace(-1.0, 2.0, N)
    inputs = [hidden, *head.parameters()]
    return list(torch.autograd.grad((function(hidden, head, tokens, temperature)[0] * weights).sum(), inputs))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_give_what_all_logits_at_once_give(dtype: torch.dtype, bias: bool, temperature: float) -> None:
    given = case(dtype, bias=bias)
    found, expected = token_scores(*given, temperature), at_once(*given, temperature)
    for ours, plain in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-6)
    ours, plain = gradients(token_scores, *given, temperature), gradients(at_once, *given, temperature)
    assert len(ours) == 2 + bias
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        assert float(other.norm()) > 0.1


def test_the_closed_form_is_the_derivative() -> None:
    hidden, head, tokens = case(torch.float64, bias=True)

    def logprobs(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return projection._TokenScores.apply(hidden, weight, bias, tokens, 0.7, projection.KEPT)[0]

    assert torch.autograd.gradcheck(logprobs, (hidden, head.weight, head.bias))


def test_bfloat16_loses_no_more_than_all_logits_at_once() -> None:
    """Against float64: rounding block by block must not add up."""
    given = case(torch.bfloat16)
    hidden, head, tokens = given
    exact_head = nn.Linear(H, V, bias=False, dtype=torch.float64)
    with torch.no_grad():
        exact_head.weight.copy_(head.weight)
    exact = (hidden.detach().double().requires_grad_(), exact_head, tokens)
    for ours, plain, true in zip(
        [*token_scores(*given, 0.7), *gradients(token_scores, *given, 0.7)],
        [*at_once(*given, 0.7), *gradients(at_once, *given, 0.7)],
        [*at_once(*exact, 0.7), *gradients(at_once, *exact, 0.7)],
        strict=True,
    ):
        assert ours.dtype == plain.dtype
        off, plain_off = (float((values.detach() - true.detach()).norm()) for values in (ours, plain))
        assert off < 1.5 * plain_off + 1e-6


def test_large_logits_and_certain_tokens_stay_finite() -> None:
    hidden, head, tokens = case(torch.float32, spread=300.0)
    logprobs, entropy = token_scores(hidden, head, tokens, 1.0)
    expected = at_once(hidden, head, tokens, 1.0)
    torch.testing.assert_close(logprobs, expected[0], atol=1e-3, rtol=1e-6)
    torch.testing.assert_close(entropy, expected[1], atol=1e-5, rtol=1e-4)
    (gradient,) = torch.autograd.grad(logprobs.sum(), hidden)
    assert gradient.isfinite().all()


def test_entropy_has_no_graph_and_nothing_has_one_without_gradients() -> None:
    given = case(torch.float32)
    logprobs, entropy = token_scores(*given, 1.0)
    assert logprobs.requires_grad
    assert not entropy.requires_grad
    with torch.no_grad():
        assert not token_scores(*given, 1.0)[0].requires_grad


def test_a_frozen_head_gets_no_gradient_and_a_tied_one_gets_both() -> None:
    hidden, head, tokens = case(torch.float32)
    head.weight.requires_grad_(False)
    token_scores(hidden, head, tokens, 1.0)[0].sum().backward()
    assert head.weight.grad is None
    assert hidden.grad is not None
    head.weight.requires_grad_(True)
    embedded = torch.nn.functional.embedding(tokens, head.weight)  # also what the head reads
    ours = torch.autograd.grad(token_scores(embedded, head, tokens, 1.0)[0].sum(), head.weight)[0]
    embedded = torch.nn.functional.embedding(tokens, head.weight)
    plain = torch.autograd.grad(at_once(embedded, head, tokens, 1.0)[0].sum(), head.weight)[0]
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def test_no_completion_at_all() -> None:
    _, head, _ = case(torch.float32)
    logprobs, entropy = token_scores(torch.zeros(0, H), head, torch.zeros(0, dtype=torch.long), 1.0)
    assert logprobs.shape == entropy.shape == (0,)


def test_logits_of_more_than_a_block_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the forward nor made in the backward."""
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            found = function(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, tuple | list) else [found]:
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return found

    monkeypatch.setattr(projection, "CPU_BLOCK", 1000)
    hidden, head = torch.randn(50, 3, requires_grad=True), nn.Linear(3, 900, bias=False)
    with Sizes():
        token_scores(hidden, head, torch.randint(900, (50,)), 1.0)[0].sum().backward()
    assert largest == 900 * 3, "the head's own gradient is the largest tensor there is; all logits are 50 x 900"


def test_no_more_logits_than_said_are_kept_for_the_backward() -> None:
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() if tensor.ndim == 2 and tensor.shape[0] == N and tensor.shape[1] != H else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        token_scores(*case(torch.float32), 1.0)
    assert kept == projection.KEPT, "as many as may be, in whole blocks"


def test_without_a_backward_no_block_outlives_the_next() -> None:
    most, blocks = 0, []

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal most
            found = function(*args, **(kwargs or {}))
            if isinstance(found, Tensor) and found.ndim == 2 and found.shape[0] == N:
                blocks.append(weakref.ref(found))
                most = max(most, sum(block() is not None for block in blocks))
            return found

    given = case(torch.float32)
    with torch.no_grad(), Alive():
        token_scores(*given, 1.0)
    assert most < V / 5, "of eight blocks only what one or two need"


def test_a_graph_that_is_kept_gives_the_same_gradient_again() -> None:
    hidden, head, tokens = case(torch.float32)
    total = token_scores(hidden, head, tokens, 1.0)[0].sum()
    first, again = (torch.autograd.grad(total, hidden, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, again, atol=0.0, rtol=0.0)


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(DataError, match="linear layer, but are Sequential"):
        token_scores(torch.zeros(2, 3), nn.Sequential(nn.Linear(3, 4)), torch.zeros(2, dtype=torch.long), 1.0)


@pytest.mark.parametrize("count", [1, 37, 4024, 300_000])
def test_a_gpus_blocks_are_aligned_and_cover_the_vocabulary(count: int) -> None:
    """Rows whose length is no multiple of 8 numbers take cuBLAS's slow kernels; 300,000 tokens leave no room for one block."""
    hidden, weight = torch.empty(count, 8, device="meta"), torch.empty(152_064, 8, device="meta")
    blocks = list(projection._blocks(hidden, weight))
    assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
    assert blocks[-1].stop == len(weight)
    assert all((block.stop - block.start) % projection.ALIGNED == 0 for block in blocks)
