"""Whole runs with the real engine: every method trains, runs repeat to the byte, and an interrupted run goes on."""

import hashlib
import json
import os
import resource
import signal
from pathlib import Path

import pandas as pd
import psutil
import pytest

from oar.common.errors import OarError
from oar.rollout.server.engine import VllmEngine
from oar.rollout.sync.checkpoint import transfer_folders
from tests.conftest import SECRETS
from tests.programs import run, start, wait_for
from tests.system.conftest import SMALL, FinishedRun, learn

pytestmark = [pytest.mark.engine, pytest.mark.system]


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that name `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) in command and process.pid != os.getpid():
            found.append(command)
    return found


@pytest.mark.parametrize("method", ["grpo", "oar_g", "oar_p"])
def test_a_run(
    method: str, finished_run: FinishedRun, base_engine: VllmEngine, base_model: Path, tmp_path: Path
) -> None:
    folder, steps = finished_run.folder, 5
    if method != "oar_g":
        steps = 2
        folder = learn(tmp_path / "run", base_model, base_engine.url, f"method={method}", f"learner.steps={steps}")
    metrics = lines(folder / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(steps + 1))
    for line in metrics[1:]:
        assert line["train/sampler_logprob_diff_mean"] < 1e-5
        assert 0 < line["train/grad_norm"] < 100
        assert 0 < line["train/reward_mean"] < 1
        assert (line["weights/ess_ratio"] == 1) == (method == "grpo")
    assert "eval/mean/avg@1" in metrics[2]
    assert set(lines(folder / "timings.jsonl")[0]) >= {"generation", "grading", "importance", "update", "sync", "total"}

    for sample in lines(folder / "samples.jsonl"):
        weights = sample["token_weights"]
        assert len(weights) == len(sample["tokens"])
        assert sum(weights) == pytest.approx(len(weights), abs=1e-3 * len(weights))  # the mass is kept
    evaluation = pd.read_csv(folder / "evaluation.csv")
    assert list(evaluation["benchmark"].unique()) == ["words1", "words2", "words3", "words4", "words5", "mean"]
    assert set(zip(evaluation["metric"], evaluation["k"], strict=True)) == {("avg@k", 2), ("pass@1", 1)}
    assert (folder / "checkpoints" / f"step_{steps:06d}" / "model.safetensors").exists()


def test_what_a_run_leaves(finished_run: FinishedRun, base_engine: VllmEngine) -> None:
    folder, output, weight_version = finished_run
    assert "4 prompts x 8 = 32 completions" in output
    assert output.count("held-out ") == 3  # before the first step, and after the second and fourth
    assert f"make inspect ARGS='run={folder}'" in output
    assert weight_version == 5
    assert list((folder / "wandb").glob("offline-run-*")), "W&B wrote nothing"
    files = [path for path in folder.rglob("*") if path.is_file()]
    for secret in [*SECRETS.values(), base_engine.token]:
        assert secret not in output
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_interrupted_run_goes_on_to_the_same_bytes(
    finished_run: FinishedRun, base_engine: VllmEngine, base_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    options = (*SMALL, "method=oar_g", "learner.steps=5", "tracking=disabled", "tracking.samples=12")
    # Refills too must follow from the step.
    options += ("learner.checkpoint_every=1", "learner.max_refills=1", f"rollout.url={base_engine.url}")
    options += (f"output_dir={folder}",)
    process = start("train", *options)
    wait_for((folder / "checkpoints" / "step_000002").exists, process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert processes_of(folder) == []

    code, output = run("train", *options)
    assert code == 2
    assert "already holds a run" in output
    code, output = run("train", *options, "resume=auto")
    assert code == 0, output
    assert "step    1/5" not in output, "started from the beginning"
    for name in ("metrics.jsonl", "evaluation.csv", "samples.jsonl"):
        assert (folder / name).read_bytes() == (finished_run.folder / name).read_bytes(), name
    begun, whole = (
        json.loads((one / "evaluation.json").read_text())["provenance"] for one in (folder, finished_run.folder)
    )
    assert (whole["first_step"], begun["first_step"] >= 3) == (1, True)
    # Both say that they began with the base model, not with a checkpoint.
    base = hashlib.sha256(hashlib.sha256((base_model / "model.safetensors").read_bytes()).digest()).hexdigest()
    assert whole["start_weights"] == begun["start_weights"] == base


def test_the_next_batch_is_drawn_during_the_update(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    """Stale completions differ from the learner by what it has learned since, and the run repeats to the byte all the same."""
    options = ("learner.steps=3", "learner.lr=1e-3", "learner.warmup_steps=0")
    options += ("rollout.max_staleness=1", "learner.sampler_correction_cap=2")
    one, two = (learn(tmp_path / name, base_model, base_engine.url, *options) for name in ("one", "two"))
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    first, *others = lines(one / "metrics.jsonl")[1:]
    assert first["train/staleness"] == 0
    assert first["train/sampler_logprob_diff_mean"] < 1e-5
    for line in others:
        assert line["train/staleness"] == 1
        assert line["train/dropped_completions"] == 0
        # Above sync.max_logprob_diff, which is for one and the same weights.
        assert line["train/sampler_logprob_diff_mean"] > 1e-3


def test_a_run_of_its_own_engine_leaves_nothing_when_the_engine_dies(base_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", *SMALL, "learner.steps=50", "tracking=disabled", f"output_dir={folder}")
    wait_for(lambda: (folder / "metrics.jsonl").exists() and len(lines(folder / "metrics.jsonl")) >= 2, process)
    servers = [
        found
        for found in psutil.process_iter(["cmdline", "name"])
        if "vllm.entrypoints.openai.api_server" in (found.info["cmdline"] or [])
        and any(parent.pid == process.pid for parent in found.parents())
    ]
    servers[-1].send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "error: " in output
    assert "engine" in output
    assert processes_of(folder) == []
    assert not any(between.exists() for between in transfer_folders(folder))


def test_full_disk_while_saving(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    """A limit on file size stands for the disk: weights (2 MB) fit, the optimizer's state (4 MB) does not."""
    folder, (before, most) = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, most))
    try:
        with pytest.raises(OarError, match="earlier checkpoints are untouched"):
            learn(folder, base_model, base_engine.url, "learner.steps=2", "learner.checkpoint_every=1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert list((folder / "checkpoints").iterdir()) == []
    assert len(lines(folder / "metrics.jsonl")) == 2


def test_evaluate_a_checkpoint(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    code, output = run(
        "evaluate",
        f"model.path={base_model}",
        "model.teach=null",
        "evaluation.final_problems=5",
        f"rollout.url={base_engine.url}",
        f"output_dir={tmp_path / 'evaluation'}",
    )
    assert code == 0, output
    frame = pd.read_csv(tmp_path / "evaluation" / "evaluation.csv")
    assert frame["n"].tolist() == [5, 5, 5, 5, 5, 25] * 5  # avg@4, pass@2, pass@4, maj@4 and greedy pass@1
    assert ((frame["ci_low"] <= frame["value"]) & (frame["value"] <= frame["ci_high"])).all()
    assert len(pd.read_parquet(tmp_path / "evaluation" / "samples.parquet")) == 25 * (4 + 1)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_table1_interrupted_and_run_again(base_model: Path, tmp_path: Path) -> None:
    options = (
        "seeds=1",
        "steps=3",
        "parallel_runs=1",
        "methods=[grpo,oar_g]",  # the one that takes longer is begun first, and the base model last
        f"output_dir={tmp_path}",
        *SMALL,
        "tracking=disabled",
    )
    trained = tmp_path / "cells" / "grpo-seed1" / "metrics.jsonl"
    process = start("table1", *options)
    wait_for(lambda: trained.exists() and len(lines(trained)) >= 2, process, timeout_s=900)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "table1.csv").exists()

    finished = tmp_path / "cells" / "oar_g-seed1" / "metrics.jsonl"
    written = finished.stat().st_mtime_ns
    code, output = run("table1", *options)
    assert code == 0, output
    assert "2 of 3 runs to do" in output
    assert finished.stat().st_mtime_ns == written
    table = pd.read_csv(tmp_path / "table1.csv")
    assert list(table.columns) == ["profile", "method", "seed", "benchmark", "metric", "k", "value", "n"]
    assert set(table["method"]) == {"base", "grpo", "oar_g"}
    for name in ("table1.md", "claims.csv", "table1.png", "curves.png", "provenance.json"):
        assert (tmp_path / name).stat().st_size > 0

    (tmp_path / "table1.csv").unlink()
    code, output = run("table1", *options)  # all is there: no engine, only the report
    assert code == 0, output
    assert "runs to do" not in output
    assert pd.read_csv(tmp_path / "table1.csv").equals(table)
