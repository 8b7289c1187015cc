"""A case of a benchmark in a process of its own: nothing that one case leaves behind is seen by the next."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from oar.common.errors import OarError
from oar.common.kernels import choose_kernels


def turned(names: Sequence[str], by: int) -> list[str]:
    """The names in turn, beginning with another one each time: none always runs behind the same one."""
    by %= len(names)
    return [*names[by:], *names[:by]]


def like_the_learner(threads: int) -> None:
    """torch as the learner's process has it."""
    torch.set_num_threads(threads)
    choose_kernels()


# A server process that has imported everything forks itself for each case, so that no case pays for the imports.
# Preloaded is what an entry point imports, which each child imports again.
_FRESH = multiprocessing.get_context("forkserver")
_FRESH.set_forkserver_preload(["oar.learner.step", "oar.analysis.reports.page", "oar.analysis.signals.agreement"])


def in_fresh_process(function: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """`function(*arguments)` in a process of its own. Raises the OarError it raises, and one where the process dies."""
    ours, theirs = _FRESH.Pipe(duplex=False)
    process = _FRESH.Process(target=_send, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise OarError(
            f"A case of the benchmark must end by itself, but its process ended with exit code {process.exitcode}: see "
            "above, or take fewer completions where memory ran out (exit code -9)."
        ) from None
    finally:
        process.kill()
        process.join()
    if isinstance(answer, OarError):
        raise answer
    result: dict[str, Any] = answer
    return result


def _send(connection: Connection, function: Callable[..., dict[str, Any]], arguments: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    try:
        connection.send(function(*arguments))
    except OarError as error:
        connection.send(error)
