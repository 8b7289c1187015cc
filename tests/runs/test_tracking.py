import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oar.common.errors import ConfigError, DataError, OarError
from oar.runs.tracking import LocalTracker, WandbTracker, check_tracking, start_tracker

ROWS = [{"prompt": "1 + 1", "tokens": ["a", "b"], "token_weights": [0.5, 1.5]}]


def write_steps(tracker: LocalTracker, steps: range) -> None:
    for step in steps:
        tracker.log(step, {"train/reward_mean": step / 10, "train/entropy": 1.0 / step})
        tracker.log_timings(step, {"generation": 0.5 * step, "total": 1.0})
        tracker.log_samples(step, [{"completion": f"{step} \u2028 line separator", "token_weights": [1.0] * step}])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_call_is_one_line_with_its_step(tmp_path: Path) -> None:
    write_steps(LocalTracker(tmp_path), range(1, 3))
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "train/entropy": 1.0, "train/reward_mean": 0.1},
        {"step": 2, "train/entropy": 0.5, "train/reward_mean": 0.2},
    ]
    assert lines(tmp_path / "timings.jsonl")[1] == {"step": 2, "generation": 1.0, "total": 1.0}
    assert [line["token_weights"] for line in lines(tmp_path / "samples.jsonl")] == [[1.0], [1.0, 1.0]]


def test_metrics_do_not_depend_on_the_order_or_type_they_came_in(tmp_path: Path) -> None:
    LocalTracker(tmp_path / "a").log(1, {"train/x": 1.5, "eval/y": 2})
    LocalTracker(tmp_path / "b").log(1, {"eval/y": np.float64(2.0), "train/x": np.float64(1.5)})
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()


def test_a_resumed_run_leaves_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    write_steps(LocalTracker(tmp_path / "whole"), range(1, 9))

    write_steps(LocalTracker(tmp_path / "broken"), range(1, 7))
    with (tmp_path / "broken/metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "train/entr')  # killed while writing
    resumed = LocalTracker(tmp_path / "broken")
    resumed.resume(4)
    write_steps(resumed, range(5, 9))

    for name in ("metrics.jsonl", "timings.jsonl", "samples.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert {path.name for path in (tmp_path / "broken").iterdir()} == {
        "metrics.jsonl",
        "timings.jsonl",
        "samples.jsonl",
    }


def test_resume_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    write_steps(LocalTracker(tmp_path), range(1, 4))
    tracker = LocalTracker(tmp_path)
    tracker.resume(-1)
    tracker.log(0, {"eval/mean/avg@1": 43.0})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "eval/mean/avg@1": 43.0}]
    assert (tmp_path / "samples.jsonl").read_bytes() == b""


def test_an_earlier_runs_lines_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    write_steps(LocalTracker(tmp_path), range(1, 4))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="earlier run"):
        LocalTracker(tmp_path).log(1, {"train/entropy": 1.0})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_broken_line_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        LocalTracker(tmp_path).resume(1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    with pytest.raises(DataError, match=r"train/grad_norm is .* at step 3"):
        LocalTracker(tmp_path).log(3, {"train/loss": 0.0, "train/grad_norm": value})
    assert not (tmp_path / "metrics.jsonl").exists()
    with pytest.raises(DataError, match="not valid JSON"):
        LocalTracker(tmp_path).log_samples(3, [{"token_weights": [value]}])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the always-full device")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OarError, match="No space left"):
        LocalTracker(tmp_path).log(1, {"train/loss": 0.0})


def test_disabled_means_local_files_only(tmp_path: Path) -> None:
    tracker = start_tracker(
        tmp_path, mode="disabled", project="p", group="g", name="n", job_type="train", tags=[], config={}
    )
    tracker.log(1, {"train/loss": 0.0})
    tracker.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def without_account(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(folder / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(folder / "no-settings"))


def test_online_without_a_key_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without_account(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"needs a W&B API key.*offline"):
        check_tracking("online")
    with pytest.raises(ConfigError, match="needs a W&B API key"):
        start_tracker(
            tmp_path / "run", mode="online", project="p", group="g", name="n", job_type="train", tags=[], config={}
        )
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


OFFLINE_RUN = """
import sys
from pathlib import Path
from oar.runs.tracking import WandbTracker
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tracker = WandbTracker(folder, mode="offline", project="oar", group="table1", name="oar_g-seed0", job_type="train",
                       tags=["embedded"], config={"method": "oar_g", "gating": {"tau": 0.4}})
tracker.resume(first - 1)
for step in range(first, last + 1):
    tracker.log(step, {"train/reward_mean": step / 10})
    tracker.log_timings(step, {"total": 1.0})
    tracker.log_samples(step, [{"completion": f"c{step}{i}", "tokens": ["t"] * step, "token_weights": [1.0] * step}
                               for i in range(2)])
(folder / "page.html").write_text("<p>a page</p>")
tracker.log_file("inspector-step_000003", folder / "page.html")
tracker.finish()
"""


def wandb_records(log: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB; checksum, length, type) after 7 bytes."""
    position, record = 7, b""
    while position < len(log):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", log[position : position + 7])
        record += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, last
            yield record
            record = b""


def logged_to_wandb(run_folder: Path) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, list[Path]]]:
    """(history rows, x axis by metric pattern, files by artifact), read back from an offline run's binary log."""
    from wandb.proto import wandb_internal_pb2

    rows, axes, artifacts = [], {}, {}
    for data in wandb_records(next(run_folder.glob("*.wandb")).read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif record.WhichOneof("record_type") == "metric":
            axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif record.WhichOneof("record_type") == "artifact":
            artifacts[record.artifact.name] = [Path(entry.local_path) for entry in record.artifact.manifest.contents]
    return rows, axes, artifacts


def test_a_real_offline_run_and_its_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_account(monkeypatch, tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run = tmp_path / "run"
    for first, last in ((1, 3), (3, 4)):  # the second process goes on from the checkpoint of step 2
        done = subprocess.run(
            [sys.executable, "-c", OFFLINE_RUN, str(run), str(first), str(last)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("", "")

    assert [line["step"] for line in lines(run / "metrics.jsonl")] == [1, 2, 3, 4]
    run_id = (run / "wandb_run_id.txt").read_text().strip()
    parts = sorted(run.glob(f"wandb/offline-run-*-{run_id}"))
    assert len(parts) == 2, "both processes belong to one W&B run"
    assert not list(home.iterdir()), "nothing outside the run folder"

    tables = sorted(parts[0].glob("files/media/table/*.json"))
    logged = [row for table in tables for row in json.loads(table.read_text())["data"]]
    assert sorted(row[1] for row in logged) == ["c10", "c11", "c20", "c21", "c30", "c31"], "no row lost or doubled"
    assert [3, "c30", ["t"] * 3, [1.0] * 3] in logged

    records, axes, artifacts = logged_to_wandb(parts[1])
    assert axes["*"] == "step", "W&B's own counter cannot go back to a checkpoint"
    assert [r["train/reward_mean"] for r in records if "train/reward_mean" in r] == [0.3, 0.4]
    assert {r["step"] for r in records} == {3, 4}
    assert any(r.get("seconds/total") == 1.0 for r in records)
    (page,) = artifacts[f"{run_id}-inspector-step_000003"]
    assert page.read_text() == "<p>a page</p>"
    assert page.is_relative_to(run), "kept until it is synced"


def test_sample_rows_must_keep_their_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_account(monkeypatch, tmp_path)
    tracker = WandbTracker(
        tmp_path, mode="offline", project="p", group="g", name="n", job_type="train", tags=[], config={}
    )
    tracker.log_samples(1, ROWS)
    with pytest.raises(DataError, match="must have the columns"):
        tracker.log_samples(2, [{"prompt": "x"}])
    tracker.finish()
