"""Runs side by side, with toy runs in the place of training: who runs when, what a failure costs, and what is run again."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from oar.common.errors import ConfigError, OarError
from oar.common.processes import ChildProcess
from oar.config import TrainConfig, validated
from oar.launch import pool
from oar.launch.in_turn import run_in_turn
from oar.launch.pool import Job, joint_provenance, run_missing
from tests.config.test_config import composed
from tests.conftest import in_time

# Notes when it runs and on which server; finishes as `evaluation.json` would have it, or as its folder says: late, or not at all.
TOY = """
import json, os, pathlib, sys, time
folder, begun = pathlib.Path(sys.argv[1]), time.monotonic()
time.sleep(3600 if (folder / "long").exists() else 0.3)
log = {"begun": begun, "ended": time.monotonic(), "url": sys.argv[2], "token": os.environ["OAR_ENGINE_TOKEN"]}
with (folder / "ran.jsonl").open("a") as file:
    file.write(json.dumps(log) + chr(10))
if (folder / "broken").exists():
    sys.exit("the toy is broken")
(folder / "evaluation.json").write_text((folder / "wanted.json").read_text())
"""


@dataclass
class ToyServers:
    """In the place of a `KeptFleet` and of what it starts."""

    number: "count[int]"
    urls: list[str] = field(default_factory=list)
    stops: int = 0
    token: str = "of the toy servers"

    def fitting(self, options: object) -> "ToyServers":
        self.urls = self.urls or [f"http://127.0.0.1:{next(self.number)}"]
        return self

    def stop(self) -> None:
        self.urls, self.stops = [], self.stops + 1

    def give_up_starting(self) -> None:
        pass  # they are there at once

    def poll(self) -> int | None:
        return None


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ToyServers]:
    """All that are made from now on."""
    made: list[ToyServers] = []
    numbers = count(8001)

    class SharedToys(pool.Servers):
        def __init__(self, folder: Path) -> None:
            made.append(ToyServers(numbers))
            super().__init__(folder, made[-1])  # type: ignore[arg-type]

        def serving(self, settings: TrainConfig, progress: object) -> Any:
            return self.fleet.fitting([])

    def toy(arguments: Sequence[str], *, log_path: Path, env: dict[str, str]) -> ChildProcess:
        said = dict(one.split("=", 1) for one in arguments if "=" in one)
        assert said["resume"] == "auto"
        command = [sys.executable, "-c", TOY, said["output_dir"].strip("'"), said["rollout.url"]]
        return ChildProcess(command, log_path=log_path, env=env)

    monkeypatch.setattr(pool, "Servers", SharedToys)
    monkeypatch.setattr(pool, "ChildProcess", toy)
    monkeypatch.setattr(pool, "POLL_S", 0.02)
    monkeypatch.chdir(tmp_path)
    return made


def jobs(folder: Path, number: int, *, broken: Sequence[int] = (), of: Sequence[Sequence[str]] = ()) -> list[Job]:
    """`of`: what is different in each."""
    made = []
    for seed in range(number):
        overrides = [f"seed={seed}", "learner.steps=3", *(of[seed] if of else ())]
        settings = validated(composed(*overrides), TrainConfig)
        job = Job(folder / f"run{seed}", overrides, settings)
        job.folder.mkdir(parents=True)
        said = {"step": 3, "identity": settings.identity(), "measure": settings.measure()}
        machine = dict.fromkeys(("versions", "platform", "cpu", "cores", "gpu", "git_dirty"))
        said |= {**machine, "git_commit": f"c{seed % 2}", "started": f"{seed}", "finished": f"{seed + 1}"}
        (job.folder / "wanted.json").write_text(json.dumps({"provenance": said}))
        if seed in broken:
            (job.folder / "broken").touch()
        made.append(job)
    return made


def ran(job: Job) -> list[dict[str, Any]]:
    file = job.folder / "ran.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_two_run_at_a_time_on_servers_of_their_own(servers: list[ToyServers], tmp_path: Path) -> None:
    planned = jobs(tmp_path, 5)
    run_missing(planned, tmp_path, 2)
    notes = [note for job in planned for note in ran(job)]
    assert len(notes) == 5
    assert {note["url"] for note in notes} == {"[http://127.0.0.1:8001]", "[http://127.0.0.1:8002]"}
    assert {note["token"] for note in notes} == {ToyServers.token}
    for note in notes:
        under_way = [one["url"] for one in notes if one["begun"] <= note["begun"] < one["ended"]]
        assert len(under_way) <= 2
        assert len(set(under_way)) == len(under_way), "two runs at a time on one server"
    assert [one.stops for one in servers] == [1, 1]
    joined = joint_provenance(planned, 2)
    assert joined["git_commit"] == ["c0", "c1", "c0", "c1", "c0"]
    assert (joined["started"], joined["finished"], joined["learner_steps"], joined["parallel_runs"]) == ("0", "5", 3, 2)

    run_missing(planned, tmp_path, 2)
    assert len(servers) == 2, "nothing was missing"


def test_the_longest_are_begun_first(servers: list[ToyServers], tmp_path: Path) -> None:
    """By the method and by the steps; what is alike in the order given."""
    different = [
        ["learner.steps=0"],
        ["method=grpo"],
        ["method=oar_p"],
        ["method=grpo"],
        ["learner.steps=300"],
        ["method=oar_g"],
    ]
    planned = jobs(tmp_path, 6, of=different)
    run_missing(planned, tmp_path, 1)
    begun = sorted(range(6), key=lambda number: ran(planned[number])[0]["begun"])
    assert begun == [4, 2, 5, 1, 3, 0]


def test_one_that_fails_is_told_after_the_last_and_run_again(servers: list[ToyServers], tmp_path: Path) -> None:
    planned = jobs(tmp_path, 3, broken=[0])
    with pytest.raises(OarError, match=r"1 of 3 runs failed; .* The first: run0 ended with exit code 1.*") as caught:
        run_missing(planned, tmp_path, 1)
    assert "the toy is broken" in str(caught.value)
    assert [job.provenance() is not None for job in planned] == [False, True, True]
    urls = [ran(job)[0]["url"][-5:-1] for job in planned]
    assert urls == ["8001", "8002", "8002"]  # nobody trusts the first any more
    (planned[0].folder / "broken").unlink()
    run_missing(planned, tmp_path, 4)
    assert [len(ran(job)) for job in planned] == [2, 1, 1]
    assert len(servers) == 2, "one fleet for one run that is missing"


@in_time
def test_an_interruption_ends_the_running_ones(
    servers: list[ToyServers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = jobs(tmp_path, 4)
    for job in planned:
        (job.folder / "long").touch()

    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_missing(planned, tmp_path, 2)
    assert [job.provenance() for job in planned] == [None] * 4
    assert [one.stops for one in servers] == [1, 1]


def test_an_interruption_ends_the_teaching_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in a thread, which Ctrl-C does not reach."""
    begun, ended = Event(), Event()

    def teach(_: object, progress: Callable[[str], None]) -> Path:
        for step in range(500):
            begun.set()
            progress(f"step {step}")
            time.sleep(0.02)
        ended.set()
        raise OarError("There is no model.")

    def interrupt(*_: object, **__: object) -> Any:
        assert begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "model_folder", teach)
    monkeypatch.setattr(pool, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_missing(jobs(tmp_path, 1), tmp_path, 1)
    assert not ended.is_set()


@pytest.mark.parametrize("several", [["learner.ranks=2"], ["rollout.servers=2"], ["rollout.tensor_parallel=2"]])
def test_runs_that_would_take_the_same_gpus_are_refused(
    servers: list[ToyServers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    planned = jobs(tmp_path, 2, of=[[], several])
    with pytest.raises(ConfigError, match=r"^parallel_runs must be 1 where a run takes several GPUs .* but is 2\.$"):
        run_missing(planned, tmp_path, 2)
    assert (servers, [ran(job) for job in planned]) == ([], [[], []])
    run_missing(planned, tmp_path, 1)
    assert [len(ran(job)) for job in planned] == [1, 1]


def test_runs_of_one_gpu_share_it(servers: list[ToyServers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    planned = jobs(tmp_path, 2)
    run_missing(planned, tmp_path, 2)
    assert len({note["url"] for job in planned for note in ran(job)}) == 2


@pytest.mark.parametrize(("profile", "at_a_time"), [("embedded", 2), ("laptop", 1), ("single_gpu", 1), ("paper", 1)])
def test_cells_that_fill_their_machine_run_one_by_one(profile: str, at_a_time: int) -> None:
    assert composed(f"profile={profile}", name="table1").parallel_runs == at_a_time


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("rollout.url=http://127.0.0.1:8001", r"rollout\.url must be left out"),
        ("rollout.restart=true", r"rollout\.restart must be false here"),
        ("rollout.port=8001", r"rollout\.port must be 0 where 2 runs go on at a time, .* but is 8001\.$"),
    ],
)
def test_servers_that_runs_cannot_share_are_refused(
    servers: list[ToyServers], tmp_path: Path, typed: str, sentence: str
) -> None:
    planned = jobs(tmp_path, 2, of=[[typed], [typed]])
    with pytest.raises(ConfigError, match=sentence):
        run_missing(planned, tmp_path, 2)
    if "port" not in typed:
        with pytest.raises(ConfigError, match=sentence):
            run_in_turn(planned, tmp_path)
    assert servers == []
