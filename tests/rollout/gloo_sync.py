"""Weight sync `nccl` with gloo in NCCL's place, on both sides: the same requests to the same server, but no GPU.

The server is started with `--worker-extension-cls tests.rollout.gloo_sync.Extension` and told `use_gloo`.
"""

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from oar.rollout.sync.ipc_worker import Extension as IpcExtension
from oar.rollout.sync.nccl import NcclSync

JOIN_S = 15.0  # how long a worker waits for the others


class GlooGroup:
    """Broadcasts from rank 0, as a sum to which the others add nothing: gloo without a default group has no other."""

    def __init__(self, port: int, rank: int, size: int) -> None:
        self._group: ProcessGroup = stateless_init_torch_distributed_process_group(
            "127.0.0.1", port, rank, size, "gloo", timeout=timedelta(seconds=JOIN_S)
        )

    def broadcast(self, tensor: Tensor) -> None:
        self._group.allreduce([tensor]).wait()

    def destroy(self) -> None:
        self._group.shutdown()


class GlooSync(NcclSync):
    """The learner's side. `claim` adds to the size of the group that the workers are told."""

    claim = 0

    def _invitation(self, world_size: int) -> tuple[dict[str, Any], Callable[[], Any]]:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        size = world_size + self.claim
        info = {"master_address": "127.0.0.1", "master_port": port, "world_size": size}
        return info, partial(GlooGroup, port, 0, size)

    def _broadcast(self, weights: Iterator[tuple[str, Tensor]]) -> Callable[[], None]:
        def broadcast() -> None:
            for _, weight in weights:
                self._group.broadcast(weight.clone())

        return broadcast


class GlooEngine(NCCLWeightTransferEngine):
    """The workers' side."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        assert init_info.master_port is not None
        rank = init_info.rank_offset + self.parallel_config.rank
        self.model_update_group = GlooGroup(init_info.master_port, rank, init_info.world_size)  # type: ignore[assignment]

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        assert self.model_update_group is not None
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.zeros(shape, dtype=getattr(torch, dtype))
            self.model_update_group.broadcast(weight)  # type: ignore[call-arg]
            self.model.load_weights([(name, weight)])


class Extension(IpcExtension):
    """What `/collective_rpc` can call on the worker, beside what sync=ipc needs."""

    def use_gloo(self: Any) -> None:
        self.weight_transfer_engine = GlooEngine(
            self.vllm_config.weight_transfer_config, self.vllm_config, self.device, self.model_runner.get_model()
        )
