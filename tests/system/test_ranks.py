"""A learner of two ranks with the real engine: what one rank learns, also when a rank is killed and the run goes on."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from oar.rollout.server.engine import VllmEngine
from tests.conftest import PATIENCE_S
from tests.programs import run, start, wait_for
from tests.system.conftest import SMALL, learn
from tests.system.test_runs import lines

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.system]
SAME = ("train/loss", "train/reward_mean", "train/entropy", "train/completion_length", "eval/mean/avg@1")


def ranks_of(folder: Path) -> dict[int, psutil.Process]:
    """The learner's processes whose run lies in `folder`, by rank."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "oar.learner" in command and str(folder / "config.yaml") in command and "oar.learner.launch" not in command:
            found[int(process.environ()["RANK"])] = process
    return found


def test_a_killed_rank_ends_the_run_and_it_goes_on_to_what_one_rank_learns(
    base_engine: VllmEngine, base_model: Path, tmp_path: Path
) -> None:
    same = ("learner.micro_batch_tokens=512", "learner.checkpoint_every=2", "learner.steps=4", "method=oar_p")
    alone, together = learn(tmp_path / "alone", base_model, base_engine.url, *same), tmp_path / "together"
    options = (*SMALL, *same, "learner.ranks=2", "tracking=disabled", f"rollout.url={base_engine.url}")
    options += (f"output_dir={together}",)
    process = start("train", *options)
    wait_for((together / "checkpoints" / "step_000002").exists, process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(ranks_of(together)[1].pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGKILL
    assert "over 2 ranks" in output
    assert output.count("reward") <= 4, "more than one rank tells"
    assert output.splitlines()[-1].startswith("error: Rank 1 of the learner was ended by SIGKILL")
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]

    code, output = run("train", *options, "resume=auto")
    assert code == 0, output
    assert f"going on from {together / 'checkpoints' / 'step_000002'}" in output
    for one, two in zip(lines(alone / "metrics.jsonl"), lines(together / "metrics.jsonl"), strict=True):
        # A token at the gate's quantile may fall on either side of it by a rounding: one of a thousand in these shares.
        assert two == pytest.approx(one, abs=1e-2, rel=1e-2)
        assert {key: two[key] for key in SAME if key in two} == pytest.approx(
            {key: one[key] for key in SAME if key in one}, abs=1e-5
        )
    assert (together / "evaluation.csv").read_bytes() == (alone / "evaluation.csv").read_bytes()
