"""The engine's side of weight sync `ipc`; vLLM loads it into its workers (`--worker-extension-cls`)."""

from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo

from oar.rollout.sync.ipc_handles import handle_from_json

BACKEND = "oar_ipc"


class JsonIpcEngine(IPCWeightTransferEngine):
    """vLLM's `ipc` with handles that come as JSON, so that nothing is unpickled."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        """Raises ValueError for what is not a description of weights and handles."""
        handles = update_dict.get("ipc_handles")
        if not isinstance(handles, dict):
            raise ValueError("ipc_handles must be an object of one handle by GPU.")
        rebuilt = {gpu: handle_from_json(handle) for gpu, handle in handles.items()}
        return super().parse_update_info({**update_dict, "ipc_handles": rebuilt})


class Extension:
    """Adds nothing to the worker: naming it makes vLLM load this file before it looks for the backend."""


WeightTransferEngineFactory.register_engine(BACKEND, JsonIpcEngine)
