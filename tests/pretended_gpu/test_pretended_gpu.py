"""The pretended GPU refuses what CUDA refuses, allows what it allows, and counts where the CPU would wait."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tests.models import tiny_model
from tests.pretended_gpu import MixedDevicesError, PretendedGpu, pretended_gpu

HERE = "tests/pretended_gpu/test_pretended_gpu.py"
GPU = torch.device("cuda:0")


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


def pair() -> tuple[Tensor, Tensor]:
    """The same numbers (3, 4) on the GPU and on the CPU."""
    here = torch.arange(12.0).view(3, 4)
    return here.cuda(), here


def rows(device: str) -> Tensor:
    return torch.tensor([2, 0], device=device)


REFUSED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum of two": lambda there, here: there + here,
    "sum in place": lambda there, here: here.add_(there),
    "number on the GPU, tensor on the CPU": lambda there, here: here + there[0, 0],
    "number on the CPU in a matrix product's place": lambda there, here: torch.cat([there[0], here[0]]),
    "matrix product": lambda there, here: there @ here.T,
    "index on the GPU": lambda there, here: here[rows("cuda")],
    "write at an index on the GPU": lambda there, here: here.__setitem__(rows("cuda"), 1.0),
    "write rows of the CPU": lambda there, here: there.__setitem__(rows("cuda"), here[:2]),
    "mask on the GPU": lambda there, here: here[there > 3],
    "gather": lambda there, here: there.gather(1, torch.zeros(3, 1, dtype=torch.long)),
    "embedding": lambda there, here: nn.functional.embedding(rows("cpu"), there),
    "where": lambda there, here: torch.where(there > 3, here, 0.0),
    "generator of the CPU": lambda there, here: torch.rand(3, generator=torch.Generator(), device="cuda"),
    "filled with a generator of the CPU": lambda there, here: there.normal_(generator=torch.Generator()),
    "an index made without a device": lambda there, here: there.gather(1, torch.arange(3)[:, None]),
    "numpy": lambda there, here: there.numpy(),
    "numpy's own function": lambda there, here: np.asarray(there),
    "total into a number": lambda there, here: torch.zeros(()).add_(there.sum()),
    "attention": lambda there, here: scaled_dot_product_attention(there[None], here[None], there[None]),
    "stack": lambda there, here: torch.stack([there, here]),
}
ALLOWED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "number of the CPU": lambda there, here: there * here[0, 1] + 2.0,
    "index on the CPU": lambda there, here: there[rows("cpu")],
    "write at an index on the CPU": lambda there, here: there.__setitem__(rows("cpu"), 1.0),
    "fill": lambda there, here: there.__setitem__((..., 0), 1.0),
    "copy": lambda there, here: (there.copy_(here), here.copy_(there)),
    "through the CPU": lambda there, here: there.cpu() + here,
    "made beside": lambda there, here: there + there.new_ones(4) + torch.zeros_like(there),
    "made there": lambda there, here: there[torch.arange(2, device=there.device)] + torch.ones(4, device="cuda"),
    "where": lambda there, here: torch.where(there > 3, there, 0.0),
    "view and write": lambda there, here: there.view(-1)[:4].add_(there[1]),
    "attention": lambda there, here: scaled_dot_product_attention(
        there[None], there[None], there[None], attn_mask=(there @ there.T)[None] > 3
    ),
    "numpy of a copy": lambda there, here: there.cpu().numpy(),
    "moved as another": lambda there, here: here.to(there) + there,
    "moved and changed": lambda there, here: here.to("cuda", torch.float64) + there.double(),
    "a deep copy": lambda there, here: deepcopy(there) + there,
    "drawn and moved": lambda there, here: torch.rand(4, generator=torch.Generator()).to(there.device) + there,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, gpu: PretendedGpu) -> None:
    there, here = pair()
    with pytest.raises(MixedDevicesError, match=HERE):
        REFUSED[name](there, here)


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str, gpu: PretendedGpu) -> None:
    ALLOWED[name](*pair())


def test_where_a_tensor_says_it_is(gpu: PretendedGpu) -> None:
    there, here = pair()
    for one, device in ((there, GPU), (here, torch.device("cpu"))):
        for found in (one, one[1:], one.T, one.detach(), one.clone(), one > 3, one.double(), torch.empty_like(one)):
            assert found.device == device
            assert (found.is_cuda, found.is_cpu) == (device == GPU, device != GPU)
    assert torch.tensor([1], device="cuda").device == torch.full((2,), 1.0, device=GPU).device == GPU
    assert torch.equal(there.cpu(), here)
    assert there.cuda() is there
    assert torch.zeros(2).device.type == torch.as_tensor([there[0, 0]]).device.type == "cpu"


@pytest.mark.parametrize("call", [lambda t: t.tolist(), float, bool, int, lambda t: t.item(), lambda t: t.cpu()])
def test_reading_a_number_is_a_wait(call: Callable[[Tensor], object], gpu: PretendedGpu) -> None:
    there, here = pair()
    call(here.sum())
    assert not gpu.waits
    call(there.sum())
    assert gpu.waits.total() == 1
    ((_, spot),) = gpu.waits
    assert spot.path == HERE


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.nonzero(),
        lambda t: t[t > 3],
        lambda t: t.__setitem__(t > 3, t[t.new_zeros(8).long(), 0]),
        lambda t: t.masked_select(t > 3),
        lambda t: t.unique(),
        lambda t: t.long().view(-1).bincount(),
        lambda t: t[0].repeat_interleave(t[0].long()),
        lambda t: torch.equal(t, t),
        lambda t: torch.zeros(3, 4).copy_(t),
    ],
)
def test_a_size_that_only_the_gpu_knows_is_a_wait(call: Callable[[Tensor], object], gpu: PretendedGpu) -> None:
    there, here = pair()
    call(here)
    assert not gpu.waits
    call(there)
    assert gpu.waits.total() == 1


def test_what_needs_no_wait(gpu: PretendedGpu) -> None:
    there, _ = pair()
    there[there > 3] = 0.5
    there[rows("cuda")] = there[:2].clone()
    torch.where(there > 3, there, 1.0).softmax(-1).cumsum(0).masked_fill_(there > 3, 0.0)
    torch.arange(4, device="cuda").repeat_interleave(torch.arange(4, device="cuda"), output_size=6)
    assert not gpu.waits
    assert gpu.uploads.total() == 2  # of `pair` and of `rows`


def test_gradients_are_where_their_parameters_are(gpu: PretendedGpu) -> None:
    model = tiny_model().to("cuda")
    layer = model.model.layers[0]
    layer.forward = lambda *args, forward=layer.forward, **kw: checkpoint(forward, *args, use_reentrant=False, **kw)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.arange(4, 10, device="cuda")[None]
    model(input_ids=ids, labels=ids).loss.backward()
    assert {parameter.grad.device for parameter in model.parameters()} == {GPU}
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with pytest.raises(MixedDevicesError):
        model(input_ids=ids.cpu())


def test_a_gradient_flows_through_a_move(gpu: PretendedGpu) -> None:
    there, here = pair()
    here.requires_grad_()
    (gradient,) = torch.autograd.grad((here.cuda() * there).sum(), here)
    assert gradient.device.type == "cpu"
    assert torch.equal(gradient, there.cpu())


def test_an_adapter_on_the_cpu_is_found(gpu: PretendedGpu) -> None:
    model = tiny_model().to("cuda")
    inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"), model)
    model(input_ids=torch.arange(4, 8, device="cuda")[None])  # peft puts the adapter where its layer is
    model.model.layers[0].self_attn.q_proj.lora_A.to("cpu")
    with pytest.raises(MixedDevicesError):
        model(input_ids=torch.arange(4, 8, device="cuda")[None])


def test_afterwards_all_is_as_before() -> None:
    with pretended_gpu() as gpu:
        assert torch.cuda.is_available()
        there, _ = pair()
        torch.cuda.synchronize()
    assert gpu.synchronised == 1
    assert there.device.type == "cpu"
    assert not torch.equal(there, there + 1)
