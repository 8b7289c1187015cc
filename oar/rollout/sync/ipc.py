"""Weight sync `ipc`: engine and learner share one GPU, and the engine reads the weights where the learner puts them.

The learner packs weights into one buffer and names it to the engine (CUDA IPC); the engine has loaded them before the buffer is
filled again.
"""

from typing import Any

import torch
from transformers import PreTrainedModel
from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk, packed_ipc_producer

from oar.model.parameters import Gather, described, full_weights
from oar.rollout.client.servers import each
from oar.rollout.client.vllm import Engine, EngineClient
from oar.rollout.sync.ipc_handles import handle_to_json
from oar.rollout.sync.update import start_weight_update, weight_update

BUFFER_BYTES = 2**28  # of GPU memory while a push is under way; more where one weight is larger


class IpcSync:
    """Weight sync `ipc`, from a learner of one rank. Every wait is one for a request, which the engine's clients bound."""

    def __init__(self, engine: Engine, dtype: torch.dtype | None = None) -> None:
        self._servers, self._dtype = engine.servers, dtype

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Make every server hold `model`'s weights under `version` (>= 0). Raises SyncError."""
        gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        largest = max(dtype.itemsize * shape.numel() for _, dtype, shape in described(model, self._dtype))
        with weight_update(self._servers, version):
            each(self._servers, lambda server: server.init_weight_transfer({"packed": True}))
            each(self._servers, start_weight_update)
            for chunk in packed_ipc_producer(
                gather(model, self._dtype), gpu, lambda named: named[1], max(BUFFER_BYTES, largest)
            ):
                self._update(chunk)
            each(self._servers, EngineClient.finish_weight_update)
        torch.cuda.ipc_collect()

    def close(self) -> None:
        """Nothing is open between pushes."""

    def _update(self, chunk: PackedIpcChunk) -> None:
        info: dict[str, Any] = {
            "names": chunk.names,
            "shapes": chunk.shapes,
            "dtype_names": chunk.dtype_names,
            "tensor_sizes": chunk.tensor_sizes,
            "ipc_handles": {gpu: handle_to_json(arguments) for gpu, arguments in chunk.ipc_handle.items()},
        }
        each(self._servers, lambda server: server.update_weights(info))
