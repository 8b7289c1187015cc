"""Starts a module on several ranks of this machine: `python -m oar.learner.launch RANKS MODULE ARGUMENTS`.

This is torchrun's own agent with two things changed. The store by which ranks find each other listens on loopback alone, where
torchrun's listens on every interface and keeps pickled objects. And what is told of a failure is its one sentence: the exit code
is that of the rank that failed. Over several machines torchrun itself starts the ranks (docs/RANKS.md).
"""

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 300  # seconds until all ranks have found each other
STOP_TIMEOUT_S = 10  # seconds that ranks get to end when this process is told to


def learner_command(ranks: int) -> list[str]:
    """What starts a learner of `ranks` processes; its arguments follow."""
    if ranks == 1:
        return [sys.executable, "-m", "oar.learner"]
    return [sys.executable, "-m", "oar.learner.launch", str(ranks), "oar.learner"]


class LoopbackRendezvous(StaticTCPRendezvous):
    """The ranks of one machine, whose store listens on a free port of 127.0.0.1."""

    def get_backend(self) -> str:
        """Its name."""
        return "loopback"

    def next_rendezvous(self) -> RendezvousInfo:
        """Called once: ranks are not restarted."""
        listener = socket.create_server((LOOPBACK, 0))
        port = listener.getsockname()[1]
        timeout = timedelta(seconds=START_TIMEOUT_S)
        self._store = TCPStore(LOOPBACK, port, None, True, timeout, False, master_listen_fd=listener.detach())
        return RendezvousInfo(PrefixStore(self.run_id, self._store), 0, 1, RendezvousStoreInfo(LOOPBACK, port))


def _loopback(parameters: RendezvousParameters) -> LoopbackRendezvous:
    return LoopbackRendezvous(LOOPBACK, 0, 0, 1, parameters.run_id, START_TIMEOUT_S)


def main() -> int:
    """Run all ranks to their end; the exit code of the one that failed first, 128 + signal where it was killed.

    When one has failed the others get SIGTERM, and SIGKILL after torch's 30 seconds.
    """
    ranks, module = int(sys.argv[1]), sys.argv[2:]
    logging.disable()  # what the agent has to say is told below
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    rendezvous_handler_registry.register("loopback", _loopback)
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id="learner",
            rdzv_backend="loopback",
            rdzv_endpoint=LOOPBACK,
            local_addr=LOOPBACK,
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            shutdown_timeout=STOP_TIMEOUT_S,
        )
        try:
            elastic_launch(config, sys.executable)("-m", *module)
        except SignalException as stopped:
            return 128 + stopped.sigval
        except ChildFailedError as error:
            return explained(error.failures)
    return 0


def explained(failures: Mapping[int, ProcessFailure]) -> int:
    """The exit code of the first of the failed ranks. One that was killed could not tell why it ended: that is told here."""
    rank, first = next(iter(failures.items()))  # torch lists them in the order in which they ended
    if first.exitcode >= 0:
        return first.exitcode
    print(
        f"error: Rank {rank} of the learner was ended by {signal.Signals(-first.exitcode).name} (often a lack of memory): "
        "resume=auto goes on from the last checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    return 128 - first.exitcode


if __name__ == "__main__":
    sys.exit(main())
