"""Short runs on sheets, one after the other in this process, with a real engine that they share."""

import json
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from oar.common.errors import ConfigError
from oar.config.composed import composed_run
from oar.launch.in_turn import run_in_turn
from oar.launch.pool import Job
from oar.runs.folder import read_run
from tests.config.test_config import CONF

TAUGHT_LITTLE = ("model.teach.max_steps=2", "model.teach.first_check_step=2", "model.teach.target_accuracy=0")
SMALL = (*TAUGHT_LITTLE, "model.teach.check_problems=2", "evaluation.curve_problems=4", "evaluation.final_problems=2")


def job(folder: Path, *overrides: str) -> Job:
    said = ["profile=sheets", "tracking=disabled", *SMALL, f"model.teach_dir={folder}/models", *overrides]
    with initialize_config_dir(str(CONF), version_base=None):
        return Job(folder / overrides[0], said, composed_run(said))


@pytest.mark.engine
@pytest.mark.system
@pytest.mark.timeout(600)
def test_runs_share_an_engine_and_end_where_they_have_reached_enough(tmp_path: Path) -> None:
    every_two = ("evaluation.curve_every=2", "learner.steps=5")
    early = job(tmp_path, "evaluation.stop_at=0", *every_two)  # every reward is enough
    whole = job(tmp_path, "evaluation.stop_at=2", *every_two, "method=oracle_signed")  # none is
    run_in_turn([early, whole], tmp_path)
    ended = {
        one.folder.name: (read_run(one.folder).provenance, len(read_run(one.folder).timings)) for one in (early, whole)
    }
    assert [(record["step"], record["reached"], steps) for record, steps in ended.values()] == [
        (2, True, 2),
        (5, False, 5),
    ]
    logs = list((tmp_path / "servers1").glob("engine.log"))
    assert len(logs) == 1
    assert not (whole.folder / "engine.log").exists()
    before = (early.folder / "evaluation.json").stat().st_mtime_ns
    run_in_turn([early, whole], tmp_path)  # nothing is left to do
    assert (early.folder / "evaluation.json").stat().st_mtime_ns == before
    (early.folder / "evaluation.json").unlink()  # as if it had been killed in its final evaluation
    run_in_turn([early], tmp_path)
    again = read_run(early.folder)
    assert (again.provenance["step"], again.provenance["reached"], len(again.timings)) == (2, True, 2)
    rewards = json.loads((whole.folder / "evaluation.json").read_text())["results"]
    assert "reward@k" in {row["metric"] for row in rewards}


def test_runs_that_need_processes_of_their_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.ranks must be 1"):
        run_in_turn([job(tmp_path, "learner.ranks=2")], tmp_path)
