"""How a buffer in GPU memory is named to another process of the same machine: CUDA IPC handles as JSON.

vLLM sends them as pickles, and to unpickle is to run what the sender likes. Here they are numbers and bytes with names.
"""

import base64
import binascii
from typing import Any

import torch
from torch.storage import TypedStorage

_BYTES = ("handle", "ref_counter_handle", "event_handle")
_NUMBERS = ("size", "storage_size_bytes", "storage_offset_bytes", "ref_counter_offset")
_FLAGS = ("event_sync_required",)


def handle_to_json(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What `torch.multiprocessing.reductions.reduce_tensor` gives for a flat uint8 tensor that fills its storage.

    The tensor's class, type, stride and device are left out: `handle_from_json` knows or is told them.
    """
    (_, size, _, _, _, _, _, handle, storage_size, storage_offset, _, ref_handle, ref_offset, event, event_sync) = (
        arguments
    )
    values = (handle, ref_handle, event, size[0], storage_size, storage_offset, ref_offset, event_sync)
    named = dict(zip((*_BYTES, *_NUMBERS, *_FLAGS), values, strict=True))
    return {name: base64.b64encode(value).decode() if name in _BYTES else value for name, value in named.items()}


def handle_from_json(named: Any) -> tuple[Any, ...]:
    """The arguments of `torch.multiprocessing.reductions.rebuild_cuda_tensor`; the device (the 7th) is left to the caller.

    Raises ValueError for anything but what `handle_to_json` makes.
    """
    kinds = dict.fromkeys(_BYTES, str) | dict.fromkeys(_NUMBERS, int) | dict.fromkeys(_FLAGS, bool)
    if not isinstance(named, dict) or {name: type(value) for name, value in named.items()} != kinds:
        raise ValueError(f"a CUDA IPC handle must be an object of {', '.join(kinds)}.")
    if any(named[name] < 0 for name in _NUMBERS):
        raise ValueError("a CUDA IPC handle has no negative sizes.")
    try:
        handle, ref_handle, event = (base64.b64decode(named[name], validate=True) for name in _BYTES)
    except binascii.Error:
        raise ValueError(f"{', '.join(_BYTES)} of a CUDA IPC handle must be base64.") from None
    return (
        torch.Tensor,
        torch.Size([named["size"]]),
        (1,),
        0,
        TypedStorage,
        torch.uint8,
        None,
        handle,
        named["storage_size_bytes"],
        named["storage_offset_bytes"],
        False,
        ref_handle,
        named["ref_counter_offset"],
        event,
        named["event_sync_required"],
    )
