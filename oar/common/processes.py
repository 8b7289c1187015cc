"""Child processes that never outlive their parent and leave nothing behind: the engine and the learner run as these."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

GRACE_S = 20.0
_GUARDIAN = Path(__file__).with_name("guardian.py")
_MARGIN_S = 5.0  # what the guardian gets on top of the grace it gives the command


class ChildProcess:
    """A command in a session of its own, watched by a guardian (`oar/common/guardian.py`).

    Nothing that the command started survives it, `stop()`, or the death of this process, SIGKILL included. Output goes to
    `log_path` (at its end) or, without one, to this process's own. `env` is added to this process's environment; None takes a
    variable away.
    Raises OSError when the log cannot be written.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.log_path = log_path
        self._earlier = 0  # bytes of the log that are of commands before this one
        self._grace_s = grace_s
        # -P: the guardian's folder holds modules named like the standard library's.
        guarded = [sys.executable, "-P", str(_GUARDIAN), str(os.getpid()), str(grace_s), *command]
        with contextlib.ExitStack() as stack:
            log = None
            if log_path is not None:
                log_path.parent.mkdir(parents=True, exist_ok=True)
                log = stack.enter_context(log_path.open("ab"))
                self._earlier = log.tell()
            self._guardian = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT if log is not None else None,
                env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The guardian's process id, which is also the id of the process group."""
        return self._guardian.pid

    def poll(self) -> int | None:
        """The command's exit code (128 + signal when it was killed), or None while it runs."""
        return self._guardian.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Like `poll`, but waits up to `timeout_s` seconds for the end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._guardian.wait(timeout_s)
        return None

    def tail(self, lines: int = 20) -> str:
        """The last lines that this command wrote to its log; empty without a log."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        written = self.log_path.read_bytes()[self._earlier :]
        return "\n".join(written.decode(errors="replace").splitlines()[-lines:])

    def stop(self) -> int:
        """SIGTERM to the command and its descendants, SIGKILL after the grace; returns the exit code. Idempotent."""
        if self._guardian.poll() is None:
            self._guardian.terminate()
        if self.wait(self._grace_s + _MARGIN_S) is None:
            self._guardian.kill()
        code = self._guardian.wait()
        if code < 0:  # the guardian itself was killed, so it could not clear up: the group is ended from here
            self._kill_group()
        return code

    def _kill_group(self) -> None:
        deadline = time.monotonic() + _MARGIN_S
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, signal.SIGKILL)
                time.sleep(0.05)

    def __enter__(self) -> "ChildProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
