"""Nothing that a child process starts survives the child, `stop()`, or the death of whoever started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from oar.common.processes import ChildProcess
from tests.conftest import PATIENCE_S, in_time, wait_until

# Starts a child that ignores SIGTERM in a session of its own, writes both process ids, and waits; "stubborn" ignores SIGTERM too.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
target = pathlib.Path(sys.argv[1])
target.with_suffix(".tmp").write_text(f"{os.getpid()} {child.pid}")
target.with_suffix(".tmp").rename(target)
time.sleep(600)
"""


def start_family(tmp_path: Path, manner: str = "mild", grace_s: float = 1.0) -> tuple[ChildProcess, list[int]]:
    target = tmp_path / "pids"
    process = ChildProcess([sys.executable, "-c", FAMILY, str(target), manner], grace_s=grace_s)
    return process, wait_for_pids(target)


def wait_for_pids(target: Path) -> list[int]:
    wait_until(target.exists, "the family does not start")
    return [int(pid) for pid in target.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_exit_code_and_log(tmp_path: Path) -> None:
    command = "import os, sys; print('out'); print(os.environ['SHOWN'], file=sys.stderr); sys.exit(3 + ('HOME' in os.environ))"
    env = {"SHOWN": "err", "HOME": None}
    process = ChildProcess([sys.executable, "-c", command], log_path=tmp_path / "new" / "log", env=env)
    assert process.wait(PATIENCE_S) == 3
    assert sorted(process.tail().split()) == ["err", "out"]
    assert process.tail(1) in ("err", "out")


def test_the_log_of_an_earlier_command_is_kept_and_not_told_as_ones_own(tmp_path: Path) -> None:
    for word in ("first", "second"):
        process = ChildProcess([sys.executable, "-c", f"print('{word}')"], log_path=tmp_path / "log")
        assert process.wait(PATIENCE_S) == 0
        assert process.tail() == word
    assert (tmp_path / "log").read_text().split() == ["first", "second"]


def test_a_killed_command_shows_its_signal() -> None:
    process = ChildProcess([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
    assert process.wait(PATIENCE_S) == 128 + signal.SIGSEGV


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    process = ChildProcess([str(tmp_path / "missing")], log_path=tmp_path / "log")
    assert process.wait(PATIENCE_S) == 1
    assert "FileNotFoundError" in process.tail()


@pytest.mark.parametrize("manner", ["mild", "stubborn"])
def test_stop_ends_children_of_children_even_deaf_ones(
    tmp_path: Path, manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oar.common.processes._MARGIN_S", PATIENCE_S)  # a busy machine's guardian is late
    process, pids = start_family(tmp_path, manner)
    assert process.poll() is None
    assert process.stop() >= 0, "the guardian did it, and was not killed"
    assert alive([*pids, process.pid]) == []
    assert process.stop() == process.poll()


def test_a_mild_command_can_tidy_up_before_it_ends(tmp_path: Path) -> None:
    tidy = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('tidied') or 7));"
        "print('up', flush=True); time.sleep(600)"
    )
    with ChildProcess([sys.executable, "-c", tidy], log_path=tmp_path / "log") as process:
        wait_until(lambda: "up" in process.tail(), "the command does not start")
        assert process.stop() == 7
    assert process.tail(1) == "tidied"


def test_children_of_a_killed_command_are_ended(tmp_path: Path) -> None:
    process, pids = start_family(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert alive(pids) == []


@in_time
def test_a_stopped_command_is_ended_like_any_other(tmp_path: Path) -> None:
    """Without a word it would take the whole grace."""
    process, pids = start_family(tmp_path, grace_s=3600.0)
    os.kill(pids[0], signal.SIGSTOP)
    process.stop()
    assert alive([*pids, process.pid]) == []


def test_a_killed_guardian_leaves_nothing_after_stop(tmp_path: Path) -> None:
    command = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    process = ChildProcess([sys.executable, "-c", command], log_path=tmp_path / "log")
    wait_until(lambda: process.tail() != "", "the command does not start")
    os.kill(process.pid, signal.SIGKILL)
    process.stop()
    wait_until(lambda: alive([int(process.tail())]) == [], "the command's child outlives both")


def test_a_killed_supervisor_leaves_no_orphan(tmp_path: Path) -> None:
    supervisor = (
        "import sys, time; from oar.common.processes import ChildProcess;"
        "process = ChildProcess([sys.executable, '-c', *sys.argv[1:]], grace_s=1.0); print(process.pid, flush=True);"
        "time.sleep(600)"
    )
    target = tmp_path / "pids"
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor, FAMILY, str(target), "stubborn"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pids = [int(process.stdout.readline()), *wait_for_pids(target)]
    assert all(is_alive(pid) for pid in pids)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: alive(pids) == [], "some outlive the supervisor")
