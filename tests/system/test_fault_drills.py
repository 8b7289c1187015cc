"""The short form of the fault drills: real runs lose their learner, an answer and their engine, and keep every promise."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.fault_drills.catalogue import SHORT
from oar.rollout.server.engine import VllmEngine
from tests.conftest import PATIENCE_S
from tests.programs import run


@pytest.mark.engine
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_short_form(base_engine: VllmEngine, tmp_path: Path) -> None:
    code, output = run("fault_drills", "short=true", f"url={base_engine.url}", f"output_dir={tmp_path}")
    assert code == 0, output
    numbers = json.loads(output.splitlines()[-1])
    assert numbers.pop("max_seconds_to_notice") < PATIENCE_S
    assert numbers == {"drills": len(SHORT), "orphans": 0, "lost_checkpoints": 0, "broken_promises": 0}
    table = pd.read_csv(tmp_path / "fault_drills.csv").set_index("drill")
    assert set(table.index) == set(SHORT)
    assert table["same_metrics"].all()
    assert table["restarts"].to_dict() == {name: int(name.endswith("restart")) for name in SHORT}
    assert (table.loc[table["exit_code"] == 2, "steps_lost"] > 0).all()
    assert not (tmp_path / "runs").exists()
