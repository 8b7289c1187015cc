"""Oracle recall with the real engine: interrupted, run again, and once more without anything left to do."""

import json
import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from oar.analysis.reports.page import CLOSED, OPENED, UNWRITTEN
from oar.rollout.server.engine import VllmEngine
from tests.programs import run, start, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.system]

TRAINING = ("tracking=disabled", "learner.batch_size=16", "evaluation.curve_problems=1", "evaluation.final_problems=1")
FILES = ("recall.csv", "recall.md", "recall.png", "calibration.png", "provenance.json")


def options(folder: Path, url: str, *more: str) -> list[str]:
    training = ",".join(f"'{override}'" for override in (*TRAINING, "evaluation.k=1"))
    return [
        *(
            "problems=1",
            "samples=4",
            "train_steps=2",
            f"train_overrides=[{training}]",
            f"overrides=['rollout.url={url}']",
        ),
        *(f"output_dir={folder / 'out'}", f"work_dir={folder / 'work'}", *more),
    ]


@pytest.mark.slow
def test_interrupted_and_run_again(base_engine: VllmEngine, base_model: Path, tmp_path: Path) -> None:
    command = options(tmp_path, base_engine.url)
    work, out = tmp_path / "work", tmp_path / "out"

    process = start("recall", *command)
    wait_for(lambda: bool(list(work.glob("completions/base-*/completions.parquet"))), process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert not (out / "recall.csv").exists()
    (drawn,) = work.glob("completions/base-*/completions.parquet")
    before = drawn.stat().st_mtime_ns

    code, output = run("recall", *command)
    assert code == 0, output
    assert drawn.stat().st_mtime_ns == before, "drawn again"
    assert list(work.glob("trained-*/checkpoints/step_000002/model.safetensors"))
    for name in FILES:
        assert (out / name).stat().st_size > 0, name

    table = pd.read_csv(out / "recall.csv")
    assert list(table.columns) == ["model", "split", "signal", "metric", "value", "low", "high", "n"]
    assert set(table["model"]) == {"base", "trained"}
    assert set(table["split"]) == {"all", "correct", "wrong"}
    values = table.set_index(["model", "split", "signal", "metric"])["value"]
    for model in ("base", "trained"):
        assert values[model, "all", "uniform", "causal_auc"] == 0.5
        assert values[model, "all", "oracle_causal", "causal_recall"] == 1
        assert values[model, "all", "oar_p", "spearman"] == pytest.approx(1)
        assert values[model, "wrong", "oracle_error", "error_percentile"] == 1
        # The estimators are no noise and not each other.
        assert values[model, "all", "oar_p", "causal_auc"] > 0.55
        assert 0.5 < values[model, "all", "oar_gn", "spearman"] < 1
    record = json.loads((out / "provenance.json").read_text())
    assert record["training"]["step"] == 2
    assert record["models"]["base"]["drawn"] == 20

    # Everything is kept: a second time nothing needs an engine, and the numbers are the same.
    code, output = run("recall", *options(tmp_path, "http://127.0.0.1:9"))
    assert code == 0, output
    assert pd.read_csv(out / "recall.csv").equals(table)

    # A model of the user's own, in another place, needs nothing of ours.
    more = ("~models.trained", f"+models.mine={base_model}", f"output_dir={tmp_path / 'mine'}")
    code, output = run("recall", *options(tmp_path, base_engine.url, *more))
    assert code == 0, output
    mine = pd.read_csv(tmp_path / "mine" / "recall.csv")
    assert set(mine["model"]) == {"base", "mine"}
    columns = ["split", "signal", "metric", "value"]
    base, same = (mine[mine["model"] == name][columns].reset_index(drop=True) for name in ("base", "mine"))
    pd.testing.assert_frame_equal(base, same, rtol=1e-4)  # the same weights draw the same completions


def test_experiments_on_signals_share_the_completions(base_engine: VllmEngine, tmp_path: Path) -> None:
    """One of them draws what is missing, the next needs no engine; what people concluded stays."""
    small = ("experiment=mask_artefacts", "problems=1", "samples=2", "~models.trained", f"work_dir={tmp_path / 'work'}")
    code, output = run(
        "signals", *small, f"overrides=['rollout.url={base_engine.url}']", f"output_dir={tmp_path / 'a'}"
    )
    assert code == 0, output
    table = pd.read_csv(tmp_path / "a" / "mask_artefacts.csv").set_index(["split", "signal", "metric"])["value"]
    assert table["all", "oar_p", "spearman"] == pytest.approx(1)
    assert table["all", "oar_p_random_token", "spearman_between_draws"] < 1
    assert table["words", "oar_p_knockout", "attention"] == 0

    page = tmp_path / "b" / "error_location.md"
    nobody = (
        "experiment=error_location",
        *small[1:],
        "overrides=['rollout.url=http://127.0.0.1:9']",
        f"output_dir={page.parent}",
    )
    code, output = run("signals", *nobody)
    assert code == 0, output
    assert len(list((tmp_path / "work" / "completions").iterdir())) == 1
    page.write_text(page.read_text().replace(UNWRITTEN, "Errors are early."))
    code, output = run("signals", *nobody)
    assert code == 0, output
    assert f"{OPENED}\nErrors are early.\n{CLOSED}" in page.read_text()


def test_what_cannot_work_is_told_at_once(tmp_path: Path) -> None:
    code, output = run("recall", *options(tmp_path, "http://127.0.0.1:9", "split=final"))
    assert code == 2
    assert "error: split must be one of tuning, curve, but is 'final'." in output
    code, output = run("recall", *options(tmp_path, "http://127.0.0.1:9", f"models.base={tmp_path}"))
    assert code == 2
    assert "config.json" in output
    assert "Traceback" not in output
