"""A training run, observed from outside while it goes on: its lines, its files, its processes."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType

import psutil
import requests

from oar.common.errors import OarError
from oar.rollout.access import engine_token
from oar.rollout.sync.checkpoint import transfer_folders

MARK = "OAR_DRILL"
POLL_S = 0.005  # a push of weights and a checkpoint take some 50 ms here
_RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


class ObservedRun:
    """A training run in `folder`, started at once by `command`; whatever waits does so for at most `timeout_s`.

    As a context manager it leaves none of the run's processes behind. Methods that wait raise OarError where the run ends
    or time runs out before.
    """

    def __init__(self, folder: Path, command: Sequence[str], *, timeout_s: float) -> None:
        self.folder, self._timeout_s = folder, timeout_s
        self.lines: list[tuple[float, str]] = []  # when a line was printed (monotonic), and the line
        self._mark = os.urandom(8).hex()
        self._sessions: set[int] = set()
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: self._mark},
            start_new_session=True,
            # Started in the background, this process may ignore SIGINT, and its children would as well.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    # What can be seen

    def steps_done(self) -> int:
        """The last step in metrics.jsonl; -1 before the first line."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "metrics.jsonl").read_text().count("\n") - 1
        return -1

    def checkpoints(self) -> list[str]:
        """Names of the finished checkpoints, in order."""
        return sorted(path.name for path in (self.folder / "checkpoints").glob("step_*"))

    def is_writing_checkpoint(self) -> bool:
        """Whether there is an unfinished one."""
        return any((self.folder / "checkpoints").glob(".step_*"))

    def is_pushing(self) -> bool:
        """Whether weights are on their way to the engine."""
        return any((folder / "model.safetensors").exists() for folder in transfer_folders(self.folder))

    def said(self, pattern: str, since: float = 0.0) -> tuple[float, str] | None:
        """The first line since a time (monotonic) in which `pattern` is found, with its time."""
        return next(((at, line) for at, line in list(self.lines) if at >= since and re.search(pattern, line)), None)

    def process(self, kind: str) -> psutil.Process:
        """The run's "supervisor", "learner", "api_server" or "engine_core"; raises OarError where there is none."""
        if kind == "supervisor":
            return psutil.Process(self._process.pid)
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if "-P" not in command and _is(kind, command):  # with -P: its guardian
                    return process
        raise OarError(f"The run in {self.folder.name} has no {kind}.")

    # Waiting

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Return as soon as `condition()` holds."""
        deadline = time.monotonic() + self._timeout_s
        while not condition():
            if self._process.poll() is not None:
                raise OarError(f"The run ended before {what}: {self.tail()}")
            if time.monotonic() > deadline:
                raise OarError(f"{self._timeout_s:g} s were not enough for: {what}.")
            time.sleep(POLL_S)

    def wait_for_step(self, step: int) -> None:
        """Until `step` steps are done."""
        self.wait_until(lambda: self.steps_done() >= step, f"step {step} was done")
        self.alive()

    def wait_for_generation(self, url: str) -> None:
        """Until the engine at `url` is at work on requests."""
        self.wait_until(lambda: requests_running(url) > 0, "a generation began")

    def wait_for_end(self) -> int:
        """The exit code (128 + signal where it was killed), once the run has ended."""
        deadline = time.monotonic() + self._timeout_s
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise OarError(f"The run did not end within {self._timeout_s:g} s: {self.tail()}")
            self.alive()  # notes the sessions of what it starts
            time.sleep(20 * POLL_S)
        self._reader.join(1.0)  # whoever is left may hold the other end open
        return code if code >= 0 else 128 - code

    def wait_until_alone(self, within_s: float) -> int:
        """Return when no process of the run is left, or after `within_s` seconds: how many are left then."""
        deadline = time.monotonic() + within_s
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return len(left)

    def alive(self) -> list[psutil.Process]:
        """The run's processes that are alive: those with its mark in their environment, and all of their sessions.

        A process may have overwritten its environment (vLLM's core does), but not the session it is in.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                session = os.getsid(process.pid)
                if process.environ().get(MARK) == self._mark:
                    self._sessions.add(session)
                if session in self._sessions:
                    found.append(process)
        return found

    def tail(self, lines: int = 3) -> str:
        """The end of what the run printed."""
        return " | ".join(line for _, line in self.lines[-lines:])

    def __enter__(self) -> "ObservedRun":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        while left := self.alive():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.poll()
            time.sleep(POLL_S)
        self._process.wait()
        self._reader.join()


def requests_running(url: str) -> float:
    """How many requests the engine at `url` works on; 0 where nobody is there."""
    token = engine_token(None)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with contextlib.suppress(requests.RequestException):
        metrics = requests.get(f"{url}/metrics", headers=headers, timeout=5).text
        return sum(float(value) for value in _RUNNING.findall(metrics))
    return 0.0


def _is(kind: str, command: list[str]) -> bool:
    if kind == "engine_core":
        return bool(command) and command[0].startswith("VLLM::EngineCore")
    return {"learner": "oar.learner", "api_server": "vllm.entrypoints.openai.api_server"}[kind] in command
