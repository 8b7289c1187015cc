"""The pool: a hang costs a second and a counter, a dead worker is replaced, nothing is left behind."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from oar.common.errors import ConfigError
from oar.tasks.verifier import pool as verifier_pool
from oar.tasks.verifier.pool import VerifierPool
from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]
RIGHT, WRONG, HANG = ("2\\sqrt{3}", "\\sqrt{12}"), ("2\\sqrt{3}", "\\sqrt{13}"), ("5", "9^{9^{9^{9^9}}}")


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture
def others() -> set[int]:
    """Processes that other tests have left running: the pool of `verify`."""
    return {process.pid for process in descendants()}


def test_a_hang_costs_one_child_and_one_counter(others: set[int]) -> None:
    with VerifierPool(workers=1) as pool:
        assert pool.compare([RIGHT]) == [True]
        before = [process for process in psutil.Process().children() if process.pid not in others]
        assert pool.compare([RIGHT, HANG, WRONG, RIGHT]) == [True, "timeout", False, True]
        assert pool.failures == {"timeout": 1}
        # The child's own timer ended it, after a second; where the pool has to do it, after 15, the worker goes too.
        assert [process for process in psutil.Process().children() if process.pid not in others] == before


def test_a_reply_that_came_with_the_word_ready_is_not_lost() -> None:
    """As on a busy machine, where this process is not scheduled until the worker has said both."""
    worker = verifier_pool._Worker(1.0, verifier_pool.COMPARING)
    worker.send(0, {"gold": RIGHT[0], "answer": RIGHT[1]})
    waiting = bytearray(4)
    while int.from_bytes(waiting, sys.byteorder) <= len(b'{"ready": true}\n'):
        time.sleep(0.05)
        fcntl.ioctl(worker.fileno(), termios.FIONREAD, waiting)
    assert list(verifier_pool._replies([worker])) == []  # it is ready
    ((_, reply),) = verifier_pool._replies([worker])
    assert reply["correct"] is True
    worker.end()


def test_an_interrupted_call_leaves_no_reply_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with VerifierPool(workers=1) as pool:
        assert pool.compare([RIGHT]) == [True]

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(verifier_pool.select, "select", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pool.compare([RIGHT])
        assert pool.compare([WRONG]) == [False]


@pytest.mark.slow
def test_order_is_kept_with_two_workers() -> None:
    pairs = [(f"{n}\\sqrt{{2}}", f"\\sqrt{{{2 * n * n + (n % 3 == 0)}}}") for n in range(1, 20)]
    with VerifierPool(workers=2) as pool:
        assert pool.compare([HANG, *pairs]) == ["timeout", *(n % 3 != 0 for n in range(1, 20))]


def test_a_dead_worker_is_replaced(others: set[int]) -> None:
    with VerifierPool(workers=1) as pool:
        assert pool.compare([RIGHT]) == [True]
        (worker,) = [process for process in psutil.Process().children() if process.pid not in others]
        killed = [worker, *worker.children()]
        for process in killed:
            process.kill()
        psutil.wait_procs(killed, timeout=PATIENCE_S)
        assert pool.compare([RIGHT]) == ["crash"]  # found out on use: no verdict, and counted
        assert pool.compare([RIGHT, WRONG]) == [True, False]
        assert pool.failures == {"crash": 1}


@pytest.mark.slow
def test_a_dead_child_of_a_worker_is_replaced(others: set[int]) -> None:
    with VerifierPool(workers=1) as pool:
        pool.compare([RIGHT])
        (worker,) = [process for process in psutil.Process().children() if process.pid not in others]
        (child,) = worker.children()
        child.kill()
        assert pool.compare([RIGHT, WRONG, RIGHT, WRONG])[1:] == [False, True, False]
        assert pool.compare([WRONG, RIGHT]) == [False, True]


def test_close_leaves_no_process_and_the_pool_can_go_on(others: set[int]) -> None:
    pool = VerifierPool(workers=2)
    pool.compare([RIGHT, WRONG])
    started = [process for process in descendants() if process.pid not in others]
    assert len(started) == 4  # two workers, a child each
    pool.close()
    pool.close()
    assert psutil.wait_procs(started, timeout=PATIENCE_S)[1] == []
    assert pool.compare([RIGHT]) == [True]
    pool.close()


def test_workers_end_with_a_killed_parent() -> None:
    code = (
        "import os\nfrom oar.tasks.verifier.pool import VerifierPool\npool = VerifierPool(1)\n"
        f"pool.compare([{RIGHT!r}])\nimport psutil\n"
        "print(*[p.pid for p in psutil.Process().children(recursive=True)], flush=True)\n"
        f"pool.compare([{HANG!r}] * 100)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert run.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    assert len(processes) == 2
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []


@pytest.mark.slow
def test_threads_may_share_a_pool() -> None:
    answers: list[list[bool | str]] = []
    with VerifierPool(workers=1) as pool:
        threads = [threading.Thread(target=lambda: answers.append(pool.compare([RIGHT, WRONG]))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [[True, False]] * 4


def test_what_cannot_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="workers >= 1"):
        VerifierPool(workers=0)
    with pytest.raises(ConfigError, match="timeout_s > 0"):
        VerifierPool(timeout_s=0)
    broken = tmp_path / "worker.py"
    broken.write_text("import no_such_module\n")
    monkeypatch.setattr(verifier_pool, "_WORKER", broken)
    with VerifierPool(workers=1) as pool, pytest.raises(ConfigError, match="no_such_module"):
        pool.compare([RIGHT])
