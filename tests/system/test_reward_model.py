"""The program that teaches a reward model, on the real base model: found again, and read by the probe."""

from pathlib import Path

import pytest

from oar.model.load import load_scorer, load_tokenizer
from tests.programs import run

pytestmark = pytest.mark.system


def test_it_is_taught_once_and_a_probe_reads_it(base_model: Path, tmp_path: Path) -> None:
    small = ["problems=8", "held_out=2", "samples=3", "epochs=1", f"score_dir={tmp_path}"]
    code, output = run("reward_model", *small)
    assert code == 0, output
    assert "epoch 1/1" in output
    (folder,) = tmp_path.iterdir()
    assert f"probe.path={folder}" in output
    assert load_scorer(str(folder), load_tokenizer(base_model), "float32") is not None
    code, again = run("reward_model", *small)
    assert code == 0
    assert "epoch" not in again
    assert again.splitlines()[-3:] == output.splitlines()[-3:]
    code, checked = run("check_signal", "method=oar_gn", "probe=reward_model", f"probe.path={folder}", "problems=4")
    assert code == 0, checked
