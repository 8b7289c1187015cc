"""The two ways into torch, both watched: what Python calls, and what operators are dispatched in the end.

A tensor is on the pretended GPU where its storage is marked so; all data is in the CPU's memory. What Python asks of a device
(`.device`, `.to`, factories) is answered here; C++ sees the CPU alone. So nothing of a real GPU is touched, if there is one.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pretended_gpu.rules import MixedDevicesError, Operator, is_refused, is_upload, tensors_of, wait_of

ROOT = Path(__file__).parents[2]
GPU, CPU = torch.device("cuda:0"), torch.device("cpu")


class Spot(NamedTuple):
    """A line of this repository, and the function that it is in."""

    path: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class PretendedGpu:
    """What is on the GPU, and what went between it and the CPU.

    waits: by kind and line, the CPU waited for the GPU to have done all it was given; uploads: by line, copies from the CPU to
    the GPU; synchronised: calls of `torch.cuda.synchronize`.
    """

    def __init__(self) -> None:
        self.forget()
        # A weak reference keeps the address of its storage from being used again.
        self._marked: dict[int, StorageWeakRef] = {}
        self.functions = _Functions(self)

    def forget(self) -> None:
        """Count anew."""
        self.waits: Counter[tuple[str, Spot]] = Counter()
        self.uploads: Counter[Spot] = Counter()
        self.synchronised = 0

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is on the GPU."""
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata in self._marked

    def mark(self, tensor: Tensor, on_gpu: bool) -> None:
        """Say where the tensor's storage is."""
        with torch._C.DisableTorchFunction():
            storage = StorageWeakRef(tensor.untyped_storage())
        if on_gpu:
            self._marked[storage.cdata] = storage
        else:
            self._marked.pop(storage.cdata, None)

    def moved(self, tensor: Tensor, to_gpu: bool) -> Tensor:
        """The tensor itself where it is there already, else a copy through which a gradient flows back."""
        moved: Tensor = tensor if self.holds(tensor) == to_gpu else _Moved.apply(tensor, self, to_gpu)
        return moved

    def copied(self, tensor: Tensor, to_gpu: bool) -> Tensor:
        """A copy on the other side, counted."""
        if to_gpu:
            self.uploads[line()] += 1
        else:
            self.wait("copy to the CPU")
        copy = tensor.clone()
        self.mark(copy, to_gpu)
        return copy

    def wait(self, kind: str) -> None:
        """The CPU waits, for the line that is running."""
        self.waits[kind, line()] += 1

    def synchronize(self, device: object = None) -> None:
        """In the place of torch.cuda.synchronize."""
        self.synchronised += 1


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gpu: PretendedGpu, to_gpu: bool) -> Tensor:
        ctx.back = gpu, not to_gpu
        return gpu.copied(tensor, to_gpu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gpu, to_gpu = ctx.back
        return gpu.copied(gradients[0], to_gpu), None, None


class _Functions(TorchFunctionMode):
    """What Python calls: torch never hears of a GPU, and what is made by a function is made where Python would find it."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu
        self._running: list[tuple[object, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor):
            return self._tensor(func, *args, **kwargs)
        device = kwargs.get("device")
        if device is not None and _is_gpu(device):
            kwargs["device"] = CPU
        with self.running(device, (args, kwargs)):
            return func(*args, **kwargs)

    @contextmanager
    def running(self, device: object, arguments: Any) -> Iterator[None]:
        """A function called with these tensors, and with this device if not None, makes what is made in the block."""
        self._running.append((device, arguments))
        try:
            yield
        finally:
            self._running.pop()

    def makes_on_gpu(self) -> bool:
        """Whether a tensor that is made of no other belongs on the GPU: asked for by Python, else beside the call's tensors."""
        device, arguments = self._running[-1] if self._running else (None, ())
        return _is_gpu(device) if device is not None else any(map(self._gpu.holds, tensors_of(arguments)))

    def _tensor(self, make: Callable[..., Tensor], data: Any, *, device: object = None, **kwargs: Any) -> Tensor:
        to_gpu = _is_gpu(device) if device is not None else isinstance(data, Tensor) and self._gpu.holds(data)
        if device is not None and not to_gpu:
            kwargs["device"] = device  # there is `meta` as well
        with self.running(None, data if isinstance(data, Tensor) else None):
            found = make(data, **kwargs)
        if not isinstance(data, Tensor):
            for _ in filter(self._gpu.holds, tensors_of(data)):
                self._gpu.wait("item")  # a list of tensors is read one by one
        return self._gpu.moved(found, to_gpu)


def _methods(gpu: PretendedGpu) -> dict[str, Any]:
    """What a tensor is asked about devices, in the place of torch's own: hooks of C++ ask as well, where no mode is entered."""

    def own(name: str) -> Callable[..., Any]:
        """torch's own method, which would come back here by way of the mode."""
        method = getattr(Tensor, name)

        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            with gpu.functions.running(None, tensor), torch._C.DisableTorchFunction():
                return method(tensor, *args, **kwargs)

        return call

    move, read, deepcopy, own_device = own("to"), own("tolist"), own("__deepcopy__"), Tensor.device.__get__

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        to_gpu = gpu.holds(tensor)
        first, *rest = args or (kwargs.pop("device", kwargs.pop("other", None)),)
        if isinstance(first, Tensor):
            to_gpu, rest = gpu.holds(first), [first.dtype, *rest]
        elif isinstance(first, torch.dtype):
            rest = [first, *rest]
        elif first is not None:
            to_gpu = _is_gpu(first)
        target = first if isinstance(first, str | torch.device) and not to_gpu else None
        return gpu.moved(move(tensor, target, *rest, **kwargs), to_gpu)

    def tolist(tensor: Tensor) -> Any:
        if gpu.holds(tensor):
            gpu.wait("tolist")
        return read(tensor)

    def of_the_cpu(name: str) -> Callable[..., Any]:
        call = own(name)

        def called(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if gpu.holds(tensor):
                raise MixedDevicesError(f"numpy cannot read a tensor on {GPU}: {line()}")
            return call(tensor, *args, **kwargs)

        return called

    def copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        copy: Tensor = deepcopy(tensor, memo)
        gpu.mark(copy, gpu.holds(tensor))
        return copy

    return {
        "device": property(lambda tensor: GPU if gpu.holds(tensor) else own_device(tensor)),
        "is_cuda": property(gpu.holds),
        "is_cpu": property(lambda tensor: tensor.device.type == "cpu"),
        "get_device": lambda tensor: 0 if gpu.holds(tensor) else -1,
        "cuda": lambda tensor, *_, **__: gpu.moved(tensor, True),
        "cpu": lambda tensor, *_, **__: gpu.moved(tensor, False),
        "to": to,
        "tolist": tolist,
        "numpy": of_the_cpu("numpy"),
        "__array__": of_the_cpu("__array__"),
        "__deepcopy__": copied,
    }


class _Operators(TorchDispatchMode):
    """What is dispatched: refused where CUDA refuses it, counted where the CPU waits; results are where they would be."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Operator, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            given = tensors_of((args, kwargs))
            if any(map(self._gpu.holds, given)):
                self._look(func, args, kwargs)
            on_gpu, made = self._is_made_on_gpu(func, given, kwargs), func(*args, **kwargs)
            old = {one.untyped_storage()._cdata for one in given}
            for new in tensors_of(made):
                if new.untyped_storage()._cdata not in old:
                    self._gpu.mark(new, on_gpu)
            return made

    def _look(self, func: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        holds = self._gpu.holds
        if is_refused(func, args, kwargs, holds):
            sides = [str(GPU if holds(one) else CPU) for one in tensors_of((args, kwargs))]
            raise MixedDevicesError(f"{func} of tensors on {', '.join(sides)}, which CUDA refuses: {line()}")
        kind = wait_of(func, args, kwargs, holds)
        if kind is not None:
            self._gpu.wait(kind)
        if is_upload(func, args, holds):
            self._gpu.uploads[line()] += 1

    def _is_made_on_gpu(self, func: Operator, given: Sequence[Tensor], kwargs: Mapping[str, Any]) -> bool:
        if kwargs.get("device") is None and given:
            return any(map(self._gpu.holds, given))
        # C++ names the CPU wherever it makes a tensor like another.
        on_gpu = self._gpu.functions.makes_on_gpu()
        if on_gpu and kwargs.get("generator") is not None:
            raise MixedDevicesError(f"{func} with a generator of the CPU for a tensor on {GPU}: {line()}")
        return on_gpu


@contextmanager
def pretended_gpu() -> Iterator[PretendedGpu]:
    """In the block there is a GPU, cuda:0, as far as Python can tell."""
    gpu = PretendedGpu()
    run_backward = torch.autograd._engine_run_backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        # torch leaves the mode while it runs a function, but a backward pass runs Python code of its own.
        with gpu.functions, gpu.functions.running(None, args):
            return run_backward(*args, **kwargs)

    stubs: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": gpu.synchronize,
    }
    with ExitStack() as stack:
        for name, stub in stubs.items():
            stack.enter_context(patch.object(torch.cuda, name, stub))
        for name, method in _methods(gpu).items():
            stack.enter_context(patch.object(Tensor, name, method))
        stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(gpu.functions)
        stack.enter_context(_Operators(gpu))
        yield gpu


def line() -> Spot:
    """The innermost running line of this repository's code: of the package or an experiment, else of a test."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{ROOT}/") and path != __file__:
            found.append(Spot(path.removeprefix(f"{ROOT}/"), frame.f_code.co_qualname, frame.f_lineno))
        frame = frame.f_back
    places = ("oar/", "experiments/", "tests/")
    return next((one for place in places for one in found if one.path.startswith(place)), Spot("?", "?", 0))


def _is_gpu(device: object) -> bool:
    return torch.device(device).type == "cuda"  # type: ignore[call-overload]
