"""Weight sync `nccl`: a broadcast from the learner's GPU to those of the engine, which must be others.

The data travels by vLLM's own code on both sides, in buffers of many weights. What vLLM does through a store that keeps pickled
objects (finding each other) is done through the engine's HTTP routes instead, which ask for a token: they carry NCCL's id.

A collective that a dead peer never joins does not end. So it runs beside the requests, and the first error of either, or
the end of the time, ends the push; what hangs is aborted and left behind.
"""

import base64
import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor
from transformers import PreTrainedModel
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group
from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

from oar.common.errors import EngineError
from oar.model.parameters import Gather, described, full_weights
from oar.rollout.access import is_loopback
from oar.rollout.client.parallel import together
from oar.rollout.client.servers import each
from oar.rollout.client.vllm import Engine, EngineClient
from oar.rollout.sync.update import start_weight_update, weight_update

BUFFER_BYTES = 2**28  # of weights sent at a time; vLLM lets the last weight of a buffer run over
CLOSE_S = 10.0


class NcclSync:
    """Weight sync `nccl`. `timeout_s` bounds the wait for each stage of a push; the engine's clients bound their own requests."""

    def __init__(self, engine: Engine, timeout_s: float, dtype: torch.dtype | None = None) -> None:
        self._servers, self._timeout_s, self._dtype = engine.servers, timeout_s, dtype
        self._group: Any = None  # of this process (rank 0) and all workers of all servers; opened by the first push

    def push(self, model: PreTrainedModel, version: int, gather: Gather = full_weights) -> None:
        """Make every server hold `model`'s weights under `version` (>= 0). Raises SyncError."""
        with weight_update(self._servers, version):
            sent = False
            try:
                self._transfer(model, gather)
                sent = True
            finally:
                if not sent:
                    self._leave()  # the next push, to an engine that was started anew, opens another group

    def close(self) -> None:
        """End the group on both sides; a server that fails keeps no other from leaving."""
        if self._group is not None:
            shut_down: list[Callable[[], None]] = [partial(_shut_down, server) for server in self._servers]
            with contextlib.suppress(TimeoutError):
                together([*shut_down, self._leave], CLOSE_S)

    def _transfer(self, model: PreTrainedModel, gather: Gather) -> None:
        if self._group is None:
            self._group = self._meet()
        weights = described(model, self._dtype)
        info = {
            "names": [name for name, _, _ in weights],
            "dtype_names": [str(dtype).removeprefix("torch.") for _, dtype, _ in weights],
            "shapes": [list(shape) for _, _, shape in weights],
        }
        each(self._servers, start_weight_update)
        self._side_by_side(lambda server, _: server.update_weights(info), self._broadcast(gather(model, self._dtype)))
        each(self._servers, EngineClient.finish_weight_update)

    def _meet(self) -> Any:
        """Open the group: each server's workers take the ranks after those of the servers before it."""
        sizes = each(self._servers, EngineClient.world_size)
        first_ranks = list(accumulate(sizes, initial=1))
        info, join = self._invitation(first_ranks[-1])
        return self._side_by_side(
            lambda server, number: server.init_weight_transfer({**info, "rank_offset": first_ranks[number]}), join
        )

    def _side_by_side(self, ask: Callable[[EngineClient, int], None], own: Callable[[], Any]) -> Any:
        """Ask every server, with its number, while this process does its `own` part, whose result is returned."""
        asked: list[Callable[[], Any]] = [partial(ask, server, number) for number, server in enumerate(self._servers)]
        try:
            return together([*asked, own], self._timeout_s)[-1]
        except TimeoutError:
            raise EngineError(
                f"the learner's side did not end within {self._timeout_s:g} s (sync.timeout_s)."
            ) from None
        except RuntimeError as error:  # NCCL's and CUDA's
            raise EngineError(f"the learner's side failed: {str(error).splitlines()[0].rstrip('.')}.") from error

    def _leave(self) -> None:
        """Abort what may hang in the group, and forget it."""
        group, self._group = self._group, None
        if group is not None:
            group.destroy()  # bounded: vLLM waits five seconds for NCCL

    def _invitation(self, world_size: int) -> tuple[dict[str, Any], Callable[[], Any]]:
        """What the workers are told, and how this process joins them."""
        if all(is_loopback(urlsplit(server.url).hostname or "") for server in self._servers):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # as for servers of our own
        unique_id = bytes(NCCLLibrary().ncclGetUniqueId())
        info = {
            "nccl_unique_id_b64": base64.b64encode(unique_id).decode(),
            "world_size": world_size,
            "packed": True,
            "packed_buffer_size_bytes": BUFFER_BYTES,
        }
        return info, partial(uid_init_process_group, unique_id, 0, world_size, torch.cuda.current_device())

    def _broadcast(self, weights: Iterator[tuple[str, Tensor]]) -> Callable[[], None]:
        """This process's part in bringing the weights over."""
        device = torch.cuda.current_device()
        torch.cuda.current_stream().synchronize()  # the streams that send do not wait for the one that updated the weights

        def broadcast() -> None:
            torch.cuda.set_device(device)  # each thread has a current device of its own
            packed_nccl_broadcast_producer(
                weights,
                self._group,
                0,
                lambda named: named[1],
                buffer_size_bytes=BUFFER_BYTES,
            )

        return broadcast


def _shut_down(server: EngineClient) -> None:
    """End the server's side of the group, whatever it answers."""
    with contextlib.suppress(EngineError):
        server.shutdown_weight_transfer()
