"""The most memory that tensors hold at once, in bytes: the same measure on every device and every machine.

Resident pages would be another one: they also count what the process keeps for later, the kernel tells them with an error of a
MiB, and they do not carry over to a GPU.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Mark = Callable[[], tuple[int, int]]


@contextmanager
def peak_memory(device: str) -> Iterator[Mark]:
    """A function that tells the bytes held now, and the most that were held since it was last called.

    On a GPU torch's allocator counts. On a CPU every storage that an operation of the block gives counts until it is freed, so
    a model belongs into the block; what a kernel takes and frees within itself is not seen. Counting slows every operation.
    """
    if device == "cuda":
        yield _mark_cuda
        return
    with _CountedStorages() as counted:
        yield counted.mark


def _mark_cuda() -> tuple[int, int]:
    torch.cuda.synchronize()
    held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return held, peak


class _CountedStorages(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._held = self._peak = 0
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return found

    def _count(self, storage: UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._alive:  # a view, or an operation in place
            return

        def forget(_: object) -> None:
            del self._alive[address]
            self._held -= size

        self._alive[address] = weakref.ref(storage, forget)
        self._held += size
        self._peak = max(self._peak, self._held)

    def mark(self) -> tuple[int, int]:
        held, peak = self._held, self._peak
        self._peak = held
        return held, peak
