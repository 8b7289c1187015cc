"""Runs one command and outlives it just long enough to end everything the command started.

`python -P guardian.py PARENT_PID GRACE_S COMMAND...`, started by `oar.common.processes.ChildProcess`; standard library
and psutil only.
PR_SET_PDEATHSIG alone is not enough: it reaches one process, and vLLM's EngineCore, whose parent is the API server, lives on
for ever when that server is killed. So this process adopts every descendant that loses its parent (PR_SET_CHILD_SUBREAPER),
those in sessions of their own included, and ends them all when the command ends, when it is told to (SIGTERM), or when the
process that started it is gone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
STRAGGLER_S = 2.0  # what descendants get once the command itself is gone


def prctl(option: int, value: int) -> None:
    """Linux process control; raises OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) refused")


class Guardian:
    """One command, its exit code once it has one, and its descendants."""

    def __init__(self, command: list[str]) -> None:
        self.stopping = False
        self.code: int | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # If this process itself is killed, the command is asked to end. Single-threaded here, so preexec_fn is safe.
        self.command = subprocess.Popen(command, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def reap(self) -> None:
        """Collect every child that has ended; the command's own exit code is kept (128 + signal when killed)."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == self.command.pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self.code = self.command.returncode = code if code >= 0 else 128 - code

    def signal_descendants(self, number: int, *, spare_trackers: bool = False) -> bool:
        """Send a signal to all that is left; False when nothing is."""
        descendants = psutil.Process().children(recursive=True)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not (spare_trackers and "multiprocessing.resource_tracker" in " ".join(process.cmdline())):
                    process.send_signal(number)
                    process.resume()  # one that was stopped (SIGSTOP) takes no SIGTERM
        return bool(descendants)

    def run(self, parent: int, grace_s: float) -> int:
        """Wait for the command, a signal or the parent's end, then end what is left; returns the exit code."""
        while self.code is None and not self.stopping and os.getppid() == parent:
            time.sleep(POLL_S)
            self.reap()
        deadline = time.monotonic() + grace_s
        self.signal_descendants(signal.SIGTERM)
        while psutil.Process().children() and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
            self.reap()
            if self.code is not None:
                deadline = min(deadline, time.monotonic() + STRAGGLER_S)
        # Python's resource tracker unlinks the shared memory of processes that were killed, once they are gone: it goes last.
        deadline = time.monotonic() + STRAGGLER_S
        while self.signal_descendants(signal.SIGKILL, spare_trackers=time.monotonic() < deadline):
            time.sleep(POLL_S / 2)
            self.reap()
        return 0 if self.code is None else self.code


if __name__ == "__main__":
    sys.exit(Guardian(sys.argv[3:]).run(int(sys.argv[1]), float(sys.argv[2])))
