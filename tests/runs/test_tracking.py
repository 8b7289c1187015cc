import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from oar.common.errors import ConfigError, DataError, OarError
from oar.config.learner import TrackingConfig
from oar.runs.tracking import Logger, Tracker, start_tracker
from oar.runs.watch import Watch

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
