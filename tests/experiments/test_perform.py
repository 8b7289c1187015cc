"""A drill finds every promise that a run breaks, and none where it keeps them all; the table tells it."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from experiments.fault_drills import __main__ as program
from experiments.fault_drills.catalogue import ENDS, Drill, Scene
from experiments.fault_drills.page import numbers, write_drills
from experiments.fault_drills.perform import DrillResult, Stage, perform, printable
from tests.conftest import PATIENCE_S
from tests.experiments import toy_run
from tests.programs import run

NOBODY = "http://127.0.0.1:9"


def break_it(scene: Scene) -> None:
    scene.run.wait_for_step(6)
    scene.note()
    (scene.run.folder / "break").touch()


TOY_DRILL = Drill("toy", break_it, "it broke")


def toy_program(flaw: str) -> tuple[str, ...]:
    return sys.executable, toy_run.__file__, f"flaw={flaw}"


def performed(folder: Path, flaw: str) -> DrillResult:
    return perform(TOY_DRILL, Stage(folder, NOBODY, (), (), PATIENCE_S, toy_program(flaw)))


def test_a_run_that_keeps_its_promises(tmp_path: Path) -> None:
    result = performed(tmp_path, "none")
    assert result == replace(
        result,
        drill="toy",
        promise=ENDS,
        happened="error: it broke.",
        faults="",
        exit_code=2,
        orphans=0,
        restarts=0,
        steps_done=6,
        steps_lost=2,  # the checkpoint is of step 4
        lost_checkpoints=0,
        same_metrics=True,
    )
    assert toy_run.NOTICES_S <= result.seconds_to_notice <= (result.seconds_to_end or 0)


@pytest.mark.parametrize(
    ("flaw", "found"),
    [
        ("silent", "did not say what happened"),
        ("crashes", "exit code 1 instead of 2"),
        ("invents", "metrics that an undisturbed run does not have"),
        ("orphan", "1 processes were left"),
        ("hidden_orphan", "1 processes were left"),
        ("loses", "lost step_000004"),
        ("damages", "lost step_000004"),
        ("fails", "resume=auto ended with exit code 3"),
        ("forgets", "resumed after step 0"),
        ("differs", "ended with other metrics"),
    ],
)
def test_every_broken_promise_is_found(flaw: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "orphan" in flaw:  # which nobody will end
        monkeypatch.setattr("experiments.fault_drills.perform.ALONE_S", 0.5)
    result = performed(tmp_path, flaw)
    assert found in result.faults
    assert numbers([result])["broken_promises"] == 1
    assert result.orphans == ("orphan" in flaw)
    assert result.lost_checkpoints == (flaw in ("loses", "damages"))
    assert result.same_metrics == (flaw not in ("fails", "differs"))


def test_the_report_counts_and_tells_what_was_broken(tmp_path: Path) -> None:
    kept = performed(tmp_path / "run", "none")
    broken = replace(kept, drill="other", faults="2 processes were left", orphans=2, seconds_to_notice=7.0)
    counted = numbers([kept, broken])
    assert counted == {
        "drills": 2,
        "orphans": 2,
        "lost_checkpoints": 0,
        "max_seconds_to_notice": 7.0,
        "broken_promises": 1,
    }
    provenance = {"command": "python -m x", "cpu": "a processor", "cores": 2}
    write_drills([kept, broken], tmp_path, provenance, "small runs")
    text = (tmp_path / "fault_drills.md").read_text()
    assert "every promise was kept in 1" in text
    assert "**other: 2 processes were left.**" in text
    assert sum(line.startswith(("| toy | 2 |", "| other | 2 |")) for line in text.splitlines()) == 2
    assert len((tmp_path / "fault_drills.csv").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "provenance.json").read_text()) == provenance


@pytest.mark.parametrize(("flaw", "code"), [("none", 0), ("loses", 1)])
def test_the_program_keeps_the_run_of_a_broken_promise(
    flaw: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it but the real runs, which tests/system/test_fault_drills.py has."""
    monkeypatch.setattr(program, "DRILLS", (TOY_DRILL,))
    monkeypatch.setattr(program, "Stage", partial(Stage, program=toy_program(flaw)))
    asked = ["only=[toy]", f"url={NOBODY}", f"output_dir={tmp_path}"]
    ended, output = run("fault_drills", *asked)
    assert ended == code, output
    assert json.loads(output.splitlines()[-1])["broken_promises"] == code
    assert "toy" in (tmp_path / "fault_drills.csv").read_text()
    assert (tmp_path / "runs" / "toy").exists() == bool(code)


def test_no_path_or_port_of_this_machine_is_told(tmp_path: Path) -> None:
    said = printable(f"error: {tmp_path}/checkpoints/x at 127.0.0.1:8123, port 8123 of {Path.cwd()}/outputs.", tmp_path)
    assert said == "error: checkpoints/x at 127.0.0.1:PORT, port N of outputs."
