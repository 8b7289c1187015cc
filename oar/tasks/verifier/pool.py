"""A persistent pool of verifier processes: a hanging or crashing comparison costs one item, never the run, never a reward."""

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from oar.common.errors import ConfigError
from oar.tasks.verifier.structure import formulas, read

TIMEOUT_S = 1.0
START_S = 120.0  # for importing sympy on a busy machine
MARGIN_S = 10.0  # what a worker gets on top of its own timers (worker.py) before it is killed
COMPARING = "oar.tasks.verifier.comparing"  # what the processes do: the formulas of answers
_WORKER = Path(__file__).with_name("worker.py")
_PACKAGES = Path(__file__).parents[3]


class VerifierPool:
    """`workers` processes, started with the first request; each request gets `timeout_s` seconds of processor time.

    `module` answers them (`worker.py`); `compare` and `unreadable` are for that of formulas.

    `failures` counts what got no verdict, by reason (`timeout`, `crash`). Safe to use from several threads; close it, or use
    it in a `with`. The processes end with the one that started them. Raises ConfigError for values that cannot work, and
    where a worker cannot start.
    """

    def __init__(self, workers: int = 2, timeout_s: float = TIMEOUT_S, module: str = COMPARING) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ConfigError(f"The verifier needs workers >= 1 and timeout_s > 0, got {workers} and {timeout_s}.")
        self.failures: Counter[str] = Counter()
        self._size, self._arguments = workers, (timeout_s, module)
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[bool | str]:
        """Whether each answer equals its gold answer (first of the pair), or why there is no verdict."""
        replies = self.ask([{"gold": gold, "answer": answer} for gold, answer in pairs])
        return [str(reply["failed"]) if "failed" in reply else reply["correct"] is True for reply in replies]

    def unreadable(self, golds: Mapping[str, str]) -> dict[str, str]:
        """For load time: what is wrong with each gold answer that cannot be compared with anything, by problem as `golds` is."""
        found = {name: "empty, too long or too deeply nested" for name, gold in golds.items() if read(gold) is None}
        asked = [(name, gold) for name, gold in golds.items() if (tree := read(gold)) is not None and formulas(tree)]
        for (name, _), reply in zip(asked, self.ask([{"gold": gold} for _, gold in asked]), strict=True):
            if "failed" in reply or reply["unparsable"]:
                found[name] = str(reply.get("failed") or f"no formula: {reply['unparsable']}")
        return {name: _bad_gold(name, gold, found[name]) for name, gold in golds.items() if name in found}

    def close(self) -> None:
        """End the processes. Idempotent; what is asked later starts new ones."""
        with self._lock:
            self._end_all()

    def __enter__(self) -> "VerifierPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
        """Each request's reply, {"failed": reason} where there is none."""
        with self._lock:
            try:
                replies = self._asked(requests)
            except BaseException:  # Ctrl-C too: what these processes still answer is no reply to the next call
                self._end_all()
                raise
            self.failures.update(str(reply["failed"]) for reply in replies.values() if "failed" in reply)
            return [replies[index] for index in range(len(requests))]

    def _asked(self, requests: Sequence[Mapping[str, object]]) -> dict[int, dict[str, object]]:
        replies: dict[int, dict[str, object]] = {}
        waiting = deque(enumerate(requests))
        while len(self._workers) < min(self._size, len(requests)):
            self._workers.append(_Worker(*self._arguments))
        while len(replies) < len(requests):
            for worker in self._workers:
                if worker.item is None and waiting:
                    worker.send(*waiting.popleft())
            for worker, reply in _replies([worker for worker in self._workers if worker.item is not None]):
                if worker.item is not None:
                    replies[worker.item] = reply
                worker.item = None
                if worker.broken:
                    self._workers[self._workers.index(worker)] = _Worker(*self._arguments)
        return replies

    def _end_all(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []


class _Worker:
    """One process and the number of the request it is at (None: idle)."""

    def __init__(self, timeout_s: float, module: str) -> None:
        self.item: int | None = None
        self.broken = False
        self.deadline = time.monotonic() + START_S
        self._started, self._timeout_s = False, timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        # A plain process, not multiprocessing's: that would import the caller's __main__ once more.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER), str(timeout_s), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_PACKAGES), os.environ.get("PYTHONPATH", "")])},
        )
        assert self._process.stdout is not None
        # Without a buffer: `select` does not see a reply that was read together with the line before it.
        self._replies = open(self._process.stdout.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115

    def fileno(self) -> int:
        """What `select` watches."""
        return self._replies.fileno()

    def send(self, item: int, request: Mapping[str, object]) -> None:
        """Give it a request; a process that is gone is found out by `receive`."""
        assert self._process.stdin is not None
        self.item = item
        if self._started:
            self._set_deadline()
        try:
            self._process.stdin.write(json.dumps({"id": item, **request}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.broken = True

    def receive(self) -> dict[str, object] | None:
        """The reply to the request at hand, None where what came is none. Raises ConfigError where it never started."""
        line = self._replies.readline()
        reply: dict[str, object] = json.loads(line) if line.endswith(b"\n") else {"failed": "crash"}
        if not line.endswith(b"\n"):
            complaint = self._complaint()
            self.end()
            if not self._started:
                raise ConfigError(f"The verifier's worker must start, but ended: {complaint}")
        if "ready" in reply:
            self._started = True
            self._set_deadline()
            return None
        return None if reply.get("id", self.item) != self.item else reply

    def end(self) -> None:
        """Kill the process and whatever it forked: the child ends with its input or by its own timers."""
        self.broken = True
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _set_deadline(self) -> None:
        self.deadline = time.monotonic() + 5 * self._timeout_s + MARGIN_S

    def _complaint(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing."


def _replies(busy: Sequence[_Worker]) -> Iterable[tuple[_Worker, dict[str, object]]]:
    """What the busy workers have to say next; those that are late are ended."""
    ready, _, _ = select.select(busy, [], [], max(0.0, min(worker.deadline for worker in busy) - time.monotonic()))
    for worker in busy:
        if worker in ready:
            reply = worker.receive()
            if reply is not None:
                yield worker, reply
        elif time.monotonic() > worker.deadline:
            worker.end()
            yield worker, {"failed": "timeout"}


def _bad_gold(name: str, gold: str, why: str) -> str:
    return (
        f"Problem {name}: the gold answer must be a number, words or LaTeX that can be parsed, but is {gold!r} ({why})."
    )
