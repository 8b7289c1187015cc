"""The doctor's verdict follows from what it finds, and its exit code from the verdict."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import doctor


def test_a_machine_in_order_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("MEMORY_NEEDED", "DISK_NEEDED", "SHARED_MEMORY_NEEDED"):  # others may have filled this one
        monkeypatch.setattr(doctor, needed, 0)
    code, said = doctor.main(["--no-engine"]), capsys.readouterr().out
    assert code == 0, said
    assert said.strip().endswith("Everything needed is here.")


def test_the_exit_code_of_the_program_is_its_verdict() -> None:
    command = [sys.executable, "-m", "experiments.doctor", "--no-engine", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(doctor.__file__).parents[1], check=False)
    assert run.returncode == (json.loads(run.stdout)["mend"] is not None), run.stdout + run.stderr


def test_another_version_than_the_pinned_one_is_the_thing_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cpu.txt", "gpu.txt"):
        (tmp_path / name).write_text("# pins\nnumpy==0.0.1\nno-such-package==1.0\n")
    monkeypatch.setattr(doctor, "REQUIREMENTS", tmp_path)
    assert doctor.main(["--no-engine", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert "no-such-package is missing" in answer["found"]["Pinned packages"]
    assert "make setup" in answer["mend"]
    assert "GPU" not in answer["found"]  # nothing is imported from packages that are not in order


def test_a_second_copy_behind_on_the_path_is_not_the_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setuptools puts its own old copies at the path's end when something imports it."""
    metadata = tmp_path / "packaging-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: packaging\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert doctor.packages().mend is None
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "packaging is 1.0" in doctor.packages().found


def test_bfloat16_is_the_processors_where_the_kernel_says_so() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert doctor.bfloat16().found.startswith("by ") == bool(re.search(r"\b(avx512_|amx_)?bf16\b", flags))


def test_space_below_the_need_is_the_thing_to_mend() -> None:
    assert doctor.room("Disk", free=5, total=9, needed=5, remedy="make room").mend is None
    assert "make room" in str(doctor.room("Disk", free=4, total=9, needed=5, remedy="make room").mend)


def test_a_machine_without_shared_memory_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "shm")
    *_, shared = doctor.rooms()
    assert (shared.found, shared.mend) == ("none (weights pass through the run's folder)", None)


def test_an_engine_that_cannot_start_is_the_thing_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "write_tiny_model", lambda folder: [1])  # and so there is no model to serve
    check = doctor.engine()
    assert check.mend is not None
    assert "config.json" in check.mend


@pytest.mark.slow
@pytest.mark.engine
def test_a_real_engine_starts_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ENGINE_LOG", tmp_path / "vllm.log")
    check = doctor.engine()
    assert check.mend is None, check.mend
    assert "first completion" in check.found
