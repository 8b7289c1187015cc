"""OAR's trainer in TRL on two processes learns what it learns on one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")

from tests.integrations.trl_on_ranks import RUNS, train
from tests.learner.test_ranks import launch

SHARES = ("weights/suppressed_share", "weights/boosted_share")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two gloo processes made of each run."""
    folder = tmp_path_factory.mktemp("trl")
    done = launch("tests.integrations.trl_on_ranks", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_learns(name: str, on_two: Path, tmp_path: Path) -> None:
    log, weights = train(name, tmp_path, 1)
    found = load_file(on_two / f"{name}.safetensors")
    assert set(found) == set(weights)
    # AdamW makes much of a rounding where a gradient is nearly 0, as OAR-P and OAR-G do where a KL is; another seed moves
    # weights by 4e-3.
    close = 2e-4
    for parameter, weight in weights.items():
        torch.testing.assert_close(found[parameter], weight, atol=close, rtol=0)
    for expected, other in zip(log, json.loads((on_two / f"{name}.json").read_text()), strict=True):
        assert other["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        credit = [key for key in expected if key.startswith(("weights/", "probe/"))]
        assert len(credit) == 6
        for key in credit:  # of all completions, not of one process's
            assert other[key] == pytest.approx(expected[key], abs=4e-3 if key in SHARES else 1e-3), key
