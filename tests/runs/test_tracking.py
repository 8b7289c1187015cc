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

import numpy as np
import pytest
import yaml
from tensorboardX.proto.event_pb2 import Event

from oar.common.errors import ConfigError, DataError, OarError
from oar.config import TrainConfig, validated
from oar.config.learner import TrackingConfig
from oar.runs.tracking import Logger, Tracker, check_tracking, start_tracker
from oar.runs.watch import Watch
from tests.config.test_config import composed

ROWS = [{"prompt": "1 + 1", "tokens": ["a", "b"], "token_weights": [0.5, 1.5]}]


def write_steps(tracker: Tracker, steps: range) -> None:
    for step in steps:
        tracker.log(step, {"train/reward_mean": step / 10, "train/entropy": 1.0 / step})
        tracker.log_timings(step, {"generation": 0.5 * step, "total": 1.0})
        tracker.log_samples(step, [{"completion": f"{step} \u2028 line separator", "token_weights": [1.0] * step}])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_every_call_is_one_line_with_its_step(tmp_path: Path) -> None:
    write_steps(Tracker(tmp_path), range(1, 3))
    assert lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "train/entropy": 1.0, "train/reward_mean": 0.1},
        {"step": 2, "train/entropy": 0.5, "train/reward_mean": 0.2},
    ]
    assert lines(tmp_path / "timings.jsonl")[1] == {"step": 2, "generation": 1.0, "total": 1.0}
    assert [line["token_weights"] for line in lines(tmp_path / "samples.jsonl")] == [[1.0], [1.0, 1.0]]


def test_metrics_do_not_depend_on_the_order_or_type_they_came_in(tmp_path: Path) -> None:
    Tracker(tmp_path / "a").log(1, {"train/x": 1.5, "eval/y": 2})
    Tracker(tmp_path / "b").log(1, {"eval/y": np.float64(2.0), "train/x": np.float64(1.5)})
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()


def test_a_resumed_run_leaves_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    write_steps(Tracker(tmp_path / "whole"), range(1, 9))

    write_steps(Tracker(tmp_path / "broken"), range(1, 7))
    with (tmp_path / "broken/metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "train/entr')  # killed while writing
    resumed = Tracker(tmp_path / "broken")
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
    write_steps(Tracker(tmp_path), range(1, 4))
    tracker = Tracker(tmp_path)
    tracker.resume(-1)
    tracker.log(0, {"eval/mean/avg@1": 43.0})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 0, "eval/mean/avg@1": 43.0}]
    assert (tmp_path / "samples.jsonl").read_bytes() == b""


def test_an_earlier_runs_lines_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    write_steps(Tracker(tmp_path), range(1, 4))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="earlier run"):
        Tracker(tmp_path).log(1, {"train/entropy": 1.0})
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_broken_line_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2"):
        Tracker(tmp_path).resume(1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    with pytest.raises(DataError, match=r"train/grad_norm is .* at step 3"):
        Tracker(tmp_path).log(3, {"train/loss": 0.0, "train/grad_norm": value})
    assert not (tmp_path / "metrics.jsonl").exists()
    with pytest.raises(DataError, match="not valid JSON"):
        Tracker(tmp_path).log_samples(3, [{"token_weights": [value]}])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the always-full device")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OarError, match="No space left"):
        Tracker(tmp_path).log(1, {"train/loss": 0.0})


def tracking(mode: str, **keys: Any) -> TrackingConfig:
    return TrackingConfig(mode, "oar", 10, 16, **keys)


def test_disabled_means_local_files_only(tmp_path: Path) -> None:
    tracker = start_tracker(tmp_path, tracking("disabled"), job_type="t", tags=[], config={}, max_logprob_diff=0.1)
    tracker.log(1, {"train/loss": 0.0})
    tracker.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


class Recorder(Logger):
    """A logger that keeps what it was told: a second one needs no more than this."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def scalars(self, step, values):
        self.told.append(("scalars", step, dict(values)))

    def samples(self, step, rows):
        self.told.append(("samples", step, len(rows)))

    def final(self, step, values, rows):
        self.told.append(("final", step, dict(values), list(rows)))

    def page(self, step, name, path):
        self.told.append(("page", step, name))

    def checkpoint(self, step, folder):
        self.told.append(("checkpoint", step, folder))

    def alert(self, title, text):
        self.told.append(("alert", title, text))

    def finish(self):
        self.told.append(("finish",))


def events(folder: Path) -> list[Any]:
    """What the event files say, in the order of their writing: records of a length, its checksum, the event, its checksum."""
    found = []
    for path in (folder / "tensorboard").iterdir():
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            found.append(Event.FromString(content[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return sorted(found, key=lambda one: one.wall_time)


def test_tensorboard_has_curves_weights_final_scores_and_alerts(tmp_path: Path) -> None:
    tracking = TrackingConfig(mode="disabled", project="oar", samples_every=1, samples=4, tensorboard=True)
    about: dict[str, Any] = {"job_type": "grpo", "tags": [], "config": {}, "max_logprob_diff": 1e-3}
    tracker = start_tracker(tmp_path, tracking, **about)
    tracker.log(1, {"train/entropy": 0.5})
    tracker.log(2, {"train/entropy": 0.25})
    tracker.finish()
    resumed = start_tracker(tmp_path, tracking, **about)  # from step 1
    resumed.resume(1)
    resumed.log_timings(2, {"total": 3.0})
    resumed.log_samples(2, [{"token_weights": [0.5, 2.0, 1.0], "segments": [2, 3, 3]}])
    resumed.loggers[0].alert("entropy", "it is gone")
    resumed.log_final(2, {"eval/mean/avg@4": 50.0}, [{"benchmark": "mean"}])
    resumed.finish()
    told = [(one.step, value.tag, value.simple_value) for one in events(tmp_path) for value in one.summary.value]
    assert told[:3] == [(1, "train/entropy", 0.5), (2, "train/entropy", 0.25), (2, "seconds/total", 3.0)]
    assert {(2, "final/mean/avg_4", 50.0), (2, "entropy/text_summary", 0.0)} <= set(told)
    (weights,) = [
        value.histo for one in events(tmp_path) for value in one.summary.value if value.tag == "weights/of_tokens"
    ]
    assert (weights.num, weights.min, weights.max) == (2, 0.5, 2.0)  # the answer's weight is not among them
    assert [one.step for one in events(tmp_path) if one.session_log.status] == [
        1,
        2,
    ]  # from there on the file takes over


def test_a_logger_is_told_what_was_checked_and_is_on_disk(tmp_path: Path) -> None:
    logger = Recorder()
    tracker = Tracker(tmp_path, [logger])
    tracker.log(1, {"train/b": 2, "train/a": 1.0})
    tracker.log_timings(1, {"total": 2.0})
    tracker.log_samples(1, ROWS)
    tracker.log_samples(2, [])
    with pytest.raises(DataError):
        tracker.log(2, {"train/a": math.nan})
    tracker.log_final(2, {"eval/words1/avg@4": 50.0}, [{"benchmark": "words1"}])
    tracker.finish()
    assert logger.told == [
        ("scalars", 1, {"train/a": 1.0, "train/b": 2.0}),
        ("scalars", 1, {"seconds/total": 2.0}),
        ("samples", 1, 1),
        ("final", 2, {"final/words1/avg@4": 50.0}, [{"benchmark": "words1"}]),
        ("finish",),
    ]


def alerts(folder: Path, entropies: list[float], drift: float = 0.0) -> list[str]:
    logger = Recorder()
    tracker = Tracker(folder, [logger], Watch(max_logprob_diff=0.1))
    tracker.resume(len(lines(folder / "metrics.jsonl")) if (folder / "metrics.jsonl").exists() else -1)
    for step, entropy in enumerate(entropies, start=1):
        tracker.log(step, {"train/entropy": entropy, "train/sampler_logprob_diff_mean": drift})
    return [told[1] for told in logger.told if told[0] == "alert"]


def test_a_collapse_and_a_drift_are_told_once(tmp_path: Path) -> None:
    assert alerts(tmp_path / "a", [1.0] * 20) == []
    assert alerts(tmp_path / "b", [1.0] * 9 + [0.1] * 30) == ["Entropy has collapsed"]
    assert alerts(tmp_path / "c", [1.0] * 9 + [0.3] * 30) == []
    assert alerts(tmp_path / "d", [1.0] * 3, drift=0.049) == []
    assert alerts(tmp_path / "e", [1.0] * 3, drift=0.051) == ["Engine and learner drift apart"]


def test_a_resumed_run_remembers_how_its_entropy_began(tmp_path: Path) -> None:
    assert alerts(tmp_path, [1.0] * 9) == []
    assert alerts(tmp_path, [0.1] * 9) == ["Entropy has collapsed"]
    assert alerts(tmp_path, [0.1] * 9) == []


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
