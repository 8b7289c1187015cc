"""A multirun with the real engine: one of its runs is refused, the others share one server, and none is left."""

from pathlib import Path

import pytest

from experiments.stability.gathering import gather
from tests.programs import run
from tests.system.conftest import SMALL
from tests.system.test_runs import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.system]


def test_a_sweep_whose_second_run_is_refused(base_model: Path, tmp_path: Path) -> None:
    options = (*SMALL, "method=oar_g", "learner.steps=1", "tracking=disabled", f"hydra.sweep.dir={tmp_path}")
    code, output = run("train", "-m", *options, "gating.tau=0.2,7,0.5")
    assert code == 1, output
    assert "gating.tau must be between 0 and 1, but is 7.0." in output
    assert f"output_dir={tmp_path / '1'} resume=auto" in output
    assert [log.parent.name for log in tmp_path.glob("*/engine*.log")] == ["0"], "one server for all of them"
    assert processes_of(tmp_path) == []

    gathered = gather([tmp_path])
    assert gathered.runs["state"].tolist() == ["finished", "not begun", "finished"]
    assert gathered.runs["gating.tau"].tolist() == [0.2, 7, 0.5]
    assert gathered.varying == ["gating.tau"]
