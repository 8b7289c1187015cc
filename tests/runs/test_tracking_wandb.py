"""Runs at W&B, offline and for real: what stands in its files, what its users look for, its sweeps."""

import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from oar.common.errors import ConfigError, DataError
from oar.config import TrainConfig, validated
from oar.runs.tracking import check_tracking, start_tracker
from tests.config.test_config import composed
from tests.runs.test_tracking import ROWS, lines, tracking


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
        start_tracker(tmp_path / "run", tracking("online"), job_type="t", tags=[], config={}, max_logprob_diff=0.1)
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


OFFLINE_RUN = """
import sys
from pathlib import Path
from oar.config.learner import TrackingConfig
from oar.runs.tracking import start_tracker
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
keys = {"group": "table1", "name": "oar_g-tau0.4-seed1", "tags": ["mine"], "notes": "Why.", "entity": "team"}
tracker = start_tracker(folder, TrackingConfig("offline", "oar", 10, 16, **keys), job_type="oar_g", tags=["embedded"],
                        config={"method": "oar_g", "gating": {"tau": 0.4}}, max_logprob_diff=0.1)
tracker.resume(first - 1)
for step in range(first, last + 1):
    tracker.log(step, {"train/reward_mean": step / 10, "train/sampler_logprob_diff_mean": 0.06,
                       "eval/mean/avg@1": 10.0 - step})
    tracker.log_timings(step, {"total": 1.0})
    tracker.log_samples(step, [{"completion": f"c{step}{i}", "tokens": ["t"] * step, "token_weights": [1.0] * step,
                                "segments": [step, step, step]} for i in range(2)])
(folder / "page.html").write_text("<p>a page</p>")
tracker.log_page(3, "inspector-step_000003", folder / "page.html")
(folder / "checkpoint").mkdir(exist_ok=True)
(folder / "checkpoint" / "model.safetensors").write_text("weights")
tracker.log_checkpoint(last, folder / "checkpoint")
tracker.log_final(last, {"eval/mean/avg@4": 50.0}, [{"benchmark": "words1", "k": 4, "value": 50.0},
                                                    {"benchmark": "mean", "k": None, "value": 50.0}])
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


def records(run_folder: Path) -> Iterator[Any]:
    """What an offline run's binary log holds."""
    from wandb.proto import wandb_internal_pb2

    for data in wandb_records(next(run_folder.glob("*.wandb")).read_bytes()):
        yield wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def logged_to_wandb(run_folder: Path) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, list[Path]]]:
    """(history rows, x axis by metric pattern, files by artifact)."""
    rows, axes, artifacts = [], {}, {}
    for record in records(run_folder):
        if record.WhichOneof("record_type") == "history":
            rows.append(values_of(record.history.item))
        elif record.WhichOneof("record_type") == "metric":
            axes[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif record.WhichOneof("record_type") == "artifact":
            artifacts[record.artifact.name] = [Path(entry.local_path) for entry in record.artifact.manifest.contents]
    return rows, axes, artifacts


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real offline run in two processes: the second goes on from the checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as patch:
        without_account(patch, folder)
        (folder / "home").mkdir()
        patch.setenv("HOME", str(folder / "home"))
        for first, last in ((1, 3), (3, 4)):
            arguments = [sys.executable, "-c", OFFLINE_RUN, str(folder / "run"), str(first), str(last)]
            done = subprocess.run(arguments, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder / "run"


def parts_of(run: Path) -> list[Path]:
    return sorted(run.glob(f"wandb/offline-run-*-{(run / 'wandb_run_id.txt').read_text().strip()}"))


def test_a_real_offline_run_and_its_resumption(offline: Path) -> None:
    assert [line["step"] for line in lines(offline / "metrics.jsonl")] == [1, 2, 3, 4]
    parts = parts_of(offline)
    assert len(parts) == 2, "both processes belong to one W&B run"
    assert not list((offline.parent / "home").iterdir()), "nothing outside the run folder"

    tables = sorted(parts[0].glob("files/media/table/samples*.json"))
    logged = [row for table in tables for row in json.loads(table.read_text())["data"]]
    assert sorted(row[1] for row in logged) == ["c10", "c11", "c20", "c21", "c30", "c31"], "no row lost or doubled"
    assert [3, "c30", ["t"] * 3, [1.0] * 3, [3, 3, 3]] in logged

    rows, axes, artifacts = logged_to_wandb(parts[1])
    assert axes["*"] == "step", "W&B's own counter cannot go back to a checkpoint"
    assert [row["train/reward_mean"] for row in rows if "train/reward_mean" in row] == [0.3, 0.4]
    assert {row["step"] for row in rows} == {3, 4}
    assert any(row.get("seconds/total") == 1.0 for row in rows)
    (page,) = next(files for name, files in artifacts.items() if name.endswith("-inspector-step_000003"))
    assert page.read_text() == "<p>a page</p>"
    (weights,) = next(files for name, files in artifacts.items() if name.endswith("-checkpoint"))
    assert weights.read_text() == "weights"
    assert page.is_relative_to(offline), "kept until it is synced"
    assert weights.is_relative_to(offline / "wandb"), "a copy: the run deletes its old checkpoints"


def test_what_a_user_of_wandb_looks_for(offline: Path) -> None:
    (start, *_) = [record.run for record in records(parts_of(offline)[0]) if record.WhichOneof("record_type") == "run"]
    assert (start.display_name, start.run_group, start.job_type) == ("oar_g-tau0.4-seed1", "table1", "oar_g")
    assert (start.project, start.entity, start.notes, list(start.tags)) == ("oar", "team", "Why.", ["embedded", "mine"])
    rows, _, _ = logged_to_wandb(parts_of(offline)[0])

    def logged(name: str) -> list[Any]:
        return [row[name] for row in rows if name in row]

    assert logged("inspector/_type") == ["html-file"]
    assert [sum(values) for values in logged("weights/of_tokens/values")] == [2, 4, 6], "of two completions"
    assert (logged("final_evaluation/ncols"), logged("final_evaluation/nrows")) == ([3], [2])
    found = list(records(parts_of(offline)[0]))
    summary: dict[str, Any] = {}
    for one in found:
        if one.WhichOneof("record_type") == "summary":
            summary |= values_of(one.summary.update)
    assert summary["final/mean/avg@4"] == 50.0
    assert summary["eval/mean/avg@1"] == {"max": 9.0, "last": 7.0}
    alerted = [one.alert for one in found if one.WhichOneof("record_type") == "alert"]
    assert [(one.title, one.level) for one in alerted] == [("Engine and learner drift apart", "WARN")]


def test_sample_rows_must_keep_their_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_account(monkeypatch, tmp_path)
    tracker = start_tracker(tmp_path, tracking("offline"), job_type="t", tags=[], config={}, max_logprob_diff=0.1)
    tracker.log_samples(1, ROWS)
    with pytest.raises(DataError, match="must have the columns"):
        tracker.log_samples(2, [{"prompt": "x"}])
    tracker.finish()


SWEEP = Path(__file__).parents[2] / "docs" / "wandb_sweep.yaml"


def test_every_run_of_the_wandb_sweep_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "a1b2c3")  # as the agent of a sweep does
    sweep = yaml.safe_load(SWEEP.read_text())
    values = {key: parameter["values"] for key, parameter in sweep["parameters"].items()}
    assert {"gating.tau", "gating.beta"} <= set(values)
    _, module_flag, module, *typed, arguments = sweep["command"]
    assert (module_flag, module, arguments) == ("-m", "experiments.train", "${args_no_hyphens}")
    found = [
        validated(composed(*typed, *(f"{key}={value}" for key, value in zip(values, chosen, strict=True))), TrainConfig)
        for chosen in product(*values.values())
    ]
    assert len({cfg.identity() for cfg in found}) == len(found) == math.prod(map(len, values.values()))
    assert {cfg.output_dir for cfg in found} == {"outputs/wandb_sweep/a1b2c3"}
    assert {cfg.tracking.mode for cfg in found} == {"online"}, "an agent is told by W&B what to run"
    k = found[0].evaluation.k
    assert (sweep["metric"]["name"], sweep["metric"]["goal"]) == (f"final/mean/avg@{k}", "maximize")
