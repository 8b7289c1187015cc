"""What CUDA refuses, and where it makes the CPU wait: by the operators that torch dispatches (torch 2.13, ATen/native)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

OnGpu = Callable[[Tensor], bool]
Operator = torch._ops.OpOverload

_aten = torch.ops.aten
_COPIES = {_aten.copy_, _aten._to_copy}
_INDEXING = {_aten.index, _aten._unsafe_index}
_INDEXED_WRITING = {_aten.index_put, _aten.index_put_, _aten._index_put_impl_, _aten._unsafe_index_put}
# What their results are like, only the GPU knows, and the CPU asks it.
_ASKING = {
    _aten._local_scalar_dense: "item",
    _aten.nonzero: "nonzero",
    _aten.masked_select: "masked_select",
    _aten._unique2: "unique",
    _aten.unique_dim: "unique",
    _aten.unique_consecutive: "unique",
    _aten.bincount: "bincount",
    _aten.equal: "equal",
}


class MixedDevicesError(RuntimeError):
    """An operation that CUDA refuses, since its tensors are not on one device."""


def tensors_of(arguments: Any) -> list[Tensor]:
    """All tensors of a function's arguments or results."""
    if isinstance(arguments, Tensor):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = arguments.values()
    elif not isinstance(arguments, list | tuple):
        return []
    return [found for one in arguments for found in tensors_of(one)]


def is_refused(func: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], on_gpu: OnGpu) -> bool:
    """Whether CUDA refuses the operator for where its tensors are.

    Allowed are copies, an index on the CPU into a tensor on the GPU, and numbers: CPU tensors without dimensions, where an
    operator works element by element and does not write to them. A generator of the CPU cannot fill a tensor on the GPU.
    """
    packet, tensors = func.overloadpacket, tensors_of((args, kwargs))
    there = sum(map(on_gpu, tensors))
    if kwargs.get("generator") is not None:
        return there > 0
    if there in (0, len(tensors)) or packet in _COPIES:
        return False
    if packet in _INDEXING | _INDEXED_WRITING and on_gpu(args[0]):
        return packet in _INDEXED_WRITING and not on_gpu(args[2]) and args[2].dim() > 0
    written = {id(one) for one in _written(func, args, kwargs)}
    numbers = torch.Tag.pointwise in func.tags or packet is _aten.fill_ or func.name().startswith("aten::_foreach")
    return any(not on_gpu(one) and not (numbers and one.dim() == 0 and id(one) not in written) for one in tensors)


def wait_of(func: Operator, args: Sequence[Any], kwargs: Mapping[str, Any], on_gpu: OnGpu) -> str | None:
    """Why the CPU waits for the GPU in this operator, None where it does not. A mask used as an index is a `nonzero`."""
    packet = func.overloadpacket
    if packet in _ASKING:
        return _ASKING[packet] if on_gpu(args[0]) else None
    if packet is _aten.copy_:
        return "copy to the CPU" if on_gpu(args[1]) and not on_gpu(args[0]) else None
    if packet is _aten.repeat_interleave:
        return "repeat_interleave" if on_gpu(args[0]) and kwargs.get("output_size") is None else None
    if packet in _INDEXING | _INDEXED_WRITING and any(
        one.dtype == torch.bool and on_gpu(one) for one in _indices(args)
    ):
        # One number under a mask is a masked_fill.
        filling = packet in _INDEXED_WRITING and args[2].dim() == 0 and not on_gpu(args[2])
        return None if filling else "mask as index"
    return None


def is_upload(func: Operator, args: Sequence[Any], on_gpu: OnGpu) -> bool:
    """Whether something is copied from the CPU to the GPU."""
    packet = func.overloadpacket
    if packet is _aten.copy_:
        return on_gpu(args[0]) and not on_gpu(args[1])
    return packet in _INDEXING | _INDEXED_WRITING and on_gpu(args[0]) and not all(map(on_gpu, _indices(args)))


def _indices(args: Sequence[Any]) -> list[Tensor]:
    return tensors_of(args[1])


def _written(func: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that the operator writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_of(args[place] if place < len(args) else kwargs.get(argument.name))
