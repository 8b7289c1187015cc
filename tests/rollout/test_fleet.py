"""Servers started as one: where each goes, and that all of them end with the first that cannot go on."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import psutil
import pytest

from oar.common.errors import ConfigError, EngineError
from oar.config import TrainConfig, validated
from oar.launch.pool import Job, run_missing
from oar.launch.supervisor import engine_options, one_engine, refuse_other_files, server_options, train
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.client.servers import engine_at
from oar.rollout.client.vllm import UNKNOWN_VERSION
from oar.rollout.server.engine import EngineOptions
from oar.rollout.server.fleet import KeptFleet, VllmFleet, gpus_of_servers
from tests.config.test_config import composed
from tests.conftest import FAKE_SERVERS, TOKEN, in_time

LISTS = "[http://127.0.0.1:8001,http://127.0.0.1:8002]"

FAKE_ENGINE = f"{FAKE_SERVERS}.fake_engine"


@dataclass(frozen=True, slots=True)
class FakeOptions(EngineOptions):
    """A fake engine in place of vLLM."""

    arguments: tuple[str, ...] = ()
    delay_s: float = 0.0  # until its process is created

    def command(self, port: int) -> list[str]:
        time.sleep(self.delay_s)
        return [sys.executable, "-m", FAKE_ENGINE, "--asks", "--port", str(port), *self.arguments]


@pytest.fixture
def options(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., FakeOptions]:
    def make(number: int, *arguments: str) -> FakeOptions:
        return FakeOptions(tiny_model_dir, tmp_path / f"engine{number}.log", arguments=arguments)

    return make


def servers_left(log_folder: Path) -> int:
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return sum(FAKE_ENGINE in line and str(log_folder) in line for line in found)


def test_a_fleet_runs_and_ends_as_one(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    mark = ("--model", str(tmp_path))  # by which its processes are found again
    with VllmFleet([options(1, *mark), options(2, *mark, "--fault", "dies_at", "--at", "/resume")]) as fleet:
        assert len(set(fleet.urls)) == 2
        engine = engine_at(fleet.urls, 10.0, fleet.token)
        assert engine.health()
        assert fleet.poll() is None
        assert fleet.log_path == tmp_path / "engine1.log"
        with pytest.raises(EngineError, match="is gone"):
            engine.servers[1].resume()
        while fleet.poll() is None:
            pass
        assert fleet.poll() == 1
        assert fleet.log_path == tmp_path / "engine2.log"
        assert "listening" in fleet.tail()
        assert servers_left(tmp_path) >= 1
    assert servers_left(tmp_path) == 0
    fleet.stop()


def test_one_that_cannot_start_leaves_none(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="exit code 2 while starting"):
        VllmFleet([options(1, "--model", str(tmp_path)), options(2, "--fault", "no such")]).start()
    assert servers_left(tmp_path) == 0


def test_one_that_is_late_does_not_outlive_one_that_cannot_start(
    options: Callable[..., FakeOptions], tmp_path: Path
) -> None:
    late = replace(options(1, "--model", str(tmp_path)), delay_s=1.0)
    with pytest.raises(ConfigError, match="has no config"):
        VllmFleet([late, replace(options(2), model_path=tmp_path / "nowhere")]).start()
    time.sleep(2 * late.delay_s)
    assert servers_left(tmp_path) == 0


def test_a_fleet_starts_again_on_its_ports(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    with VllmFleet([options(1), options(2)]) as fleet:
        before = fleet.urls
        fleet.restart()
        assert fleet.urls == before
        assert engine_at(before, 10.0, fleet.token).health()
        fleet.stop()
        fleet.restart()
    logs = {f"engine{number}{old}.log" for number in (1, 2) for old in ("", ".1", ".2")}
    assert {log.name for log in tmp_path.glob("*.log")} == logs


def test_kept_servers_serve_run_after_run(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    mark = ("--model", str(tmp_path))
    kept = KeptFleet()
    first = kept.fitting([options(1, *mark)])
    one = servers_left(tmp_path)  # with its guardian
    assert kept.fitting([options(2, *mark)]) is first, "another log is no other server"
    assert servers_left(tmp_path) == one
    other = kept.fitting([options(3, *mark, "--world-size", "2")])
    assert other is not first
    assert first.poll() is not None, "the servers of another kind must not stay"
    assert servers_left(tmp_path) == one
    with pytest.raises(EngineError, match="exit code 2 while starting"):
        kept.fitting([options(4, *mark, "--fault", "no such")])
    assert servers_left(tmp_path) == 0
    again = kept.fitting([options(5, *mark, "--world-size", "2")])
    assert again.log_path == tmp_path / "engine5.log", "what could not start must not be taken for what runs"
    kept.stop()
    kept.stop()
    assert servers_left(tmp_path) == 0


def test_servers_ask_for_a_token_that_only_their_own_know(
    options: Callable[..., FakeOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with VllmFleet([options(1), options(2)]) as one, VllmFleet([options(3)]) as other:
        assert engine_at(one.urls, 10.0, one.token).weight_version() == UNKNOWN_VERSION
        for token in (None, other.token):
            with pytest.raises(EngineError, match="HTTP 401"):
                engine_at(one.urls, 10.0, token).weight_version()
        shown = " ".join(word for child in psutil.Process().children(recursive=True) for word in child.cmdline())
        assert one.token not in shown + one.tail()
    assert TOKEN_VARIABLE not in os.environ
    kept = KeptFleet()
    assert kept.fitting([options(4)]).token == kept.fitting([options(5)]).token, (
        "a token is no reason for other servers"
    )
    kept.stop()


@in_time
def test_servers_that_somebody_waits_for_can_be_given_up(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    """As a program does that is interrupted while another of its threads starts them."""
    kept, errors = KeptFleet(), []

    def start() -> None:
        with pytest.raises(EngineError) as caught:
            kept.fitting([options(1, "--model", str(tmp_path), "--fault", "http_500", "--at", "/health")])
        errors.append(caught.value)

    waiting = Thread(target=start)
    waiting.start()
    while waiting.is_alive():  # it may not have begun to wait yet
        kept.give_up_starting()
        time.sleep(0.1)
    assert "while starting" in str(errors[0])
    assert servers_left(tmp_path) == 0


def test_kept_servers_that_have_died_are_started_again(options: Callable[..., FakeOptions], tmp_path: Path) -> None:
    kept, dying = KeptFleet(), ("--model", str(tmp_path), "--fault", "dies_at", "--at", "/resume")
    first = kept.fitting([options(1, *dying)])
    with pytest.raises(EngineError, match="is gone"):
        engine_at(first.urls, 10.0, first.token).resume()
    while first.poll() is None:
        pass
    second = kept.fitting([options(2, *dying)])
    assert second is not first
    assert engine_at(second.urls, 10.0, second.token).health()
    kept.stop()
    assert servers_left(tmp_path) == 0


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def test_servers_come_after_the_learner(eight_gpus: pytest.MonkeyPatch) -> None:
    assert gpus_of_servers(2, 2, learner=4, shared=False) == [("4", "5"), ("6", "7")]
    assert gpus_of_servers(1, 1, learner=1, shared=True) == [("0",)]
    with pytest.raises(
        ConfigError, match=r"3 server\(s\) of 2 GPU\(s\) .* beside 4 of the learner .* need 10 GPUs, but 8"
    ):
        gpus_of_servers(3, 2, learner=4, shared=False)
    with pytest.raises(ConfigError, match=r"1 server\(s\) .* on those of 9 of the learner .* need 9 GPUs, but 8"):
        gpus_of_servers(1, 1, learner=9, shared=True)
    eight_gpus.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7f,5")
    assert gpus_of_servers(2, 1, learner=1, shared=False) == [("GPU-7f",), ("5",)]


def test_without_a_gpu_servers_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpus_of_servers(2, 1, learner=1, shared=False) == [(), ()]
    with pytest.raises(ConfigError, match=r"2 server\(s\) of 4 GPU\(s\) .* need 8 GPUs, but 0 are there"):
        gpus_of_servers(2, 4, learner=0, shared=False)


@pytest.mark.parametrize(
    ("gpus", "overrides", "expected"),
    [
        (2, ["sync=nccl"], [("1",)]),
        (8, ["sync=nccl", "rollout.servers=3", "rollout.tensor_parallel=2"], [("1", "2"), ("3", "4"), ("5", "6")]),
        (8, ["sync=ipc"], [("0",)]),
        (8, [], [("1",)]),
        (1, [], [("0",)]),  # one GPU is shared: the file of sync=checkpoint asks for no other
    ],
)
def test_a_run_places_its_servers(
    eight_gpus: pytest.MonkeyPatch,
    tmp_path: Path,
    gpus: int,
    overrides: list[str],
    expected: list[tuple[str, ...]],
) -> None:
    eight_gpus.setattr("torch.cuda.device_count", lambda: gpus)
    cfg = validated(composed(*overrides, "rollout.port=8100"), TrainConfig)
    made = server_options(cfg.rollout, cfg.model, tmp_path / "model", tmp_path, sync=cfg.sync, learner_gpus=1)
    assert [one.gpus for one in made] == expected
    assert [one.port for one in made] == [8100 + number for number in range(len(made))]
    assert len({one.log_path for one in made}) == len(made)
    for one in made:
        assert one.environment(TOKEN)["CUDA_VISIBLE_DEVICES"] == ",".join(one.gpus)
        command = " ".join(one.command(8100))
        assert f"--tensor-parallel-size {cfg.rollout.tensor_parallel}" in command
        assert f"--kv-cache-memory-bytes {2**30}" in command
        backend = {"nccl": '"nccl"', "ipc": '"oar_ipc"'}.get(cfg.sync.name)
        assert ("--weight-transfer-config" in command) == (backend is not None)
        assert backend is None or backend in command


def test_one_server_logs_where_it_always_did(tmp_path: Path) -> None:
    cfg = validated(composed(), TrainConfig)
    assert engine_options(cfg.rollout, cfg.model, tmp_path, tmp_path).log_path == tmp_path / "engine.log"
    cfg = validated(composed("rollout.servers=2"), TrainConfig)
    with pytest.raises(ConfigError, match=r"rollout.servers must be 1 for this program, but is 2"):
        engine_options(cfg.rollout, cfg.model, tmp_path, tmp_path)


def test_one_address_or_several() -> None:
    urls = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert validated(composed(), TrainConfig).rollout.urls == []
    assert validated(composed(f"rollout.url={urls[0]}"), TrainConfig).rollout.urls == urls[:1]
    rollout = validated(composed(f"rollout.url={LISTS}"), TrainConfig).rollout
    assert rollout.urls == urls
    with pytest.raises(ConfigError, match=r"rollout.url must be one address for this program"):
        assert rollout.only_url


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rollout.url=[]"], "rollout.url must be null, the address of a server or a list"),
        (["rollout.url=[5]"], "rollout.url must be null, the address of a server or a list"),
        (["rollout.url=[http://a,http://a]"], "rollout.url must be a list without repetition"),
        (["rollout.url=[http://a,http://a/]"], "rollout.url must be a list without repetition"),
        (
            ["rollout.url=localhost:8000"],
            "rollout.url must be .* such as http://127.0.0.1:8000, but is 'localhost:8000'",
        ),
        (["rollout.url='http://[::1'"], "rollout.url must be .* such as http://127.0.0.1:8000, but is"),
        (["rollout.url=http://a:99999"], "rollout.url must be .* such as http://127.0.0.1:8000, but is"),
        (["rollout.url=''"], "rollout.url must be .* such as http://127.0.0.1:8000, but is ''"),
        (["rollout.url='me:5ec4e7@b:8000'"], "rollout.url must be without a name or password"),
        (["rollout.url=[http://a,http://me:5ec4e7@b]"], "rollout.url must be without a name or password"),
        (["rollout.servers=0"], "rollout.servers must be 1 or more"),
        (["rollout.tensor_parallel=0"], "rollout.tensor_parallel must be 1 or more"),
        (["sync=ipc", "rollout.servers=2"], "sync.name must be nccl or checkpoint where there are several GPUs"),
        (["sync=ipc", "learner.ranks=2"], "sync.name must be nccl or checkpoint where there are several GPUs"),
        (["sync.name=carrier_pigeon"], "sync.name must be one of checkpoint, nccl, ipc"),
        (["sync.timeout_s=0"], "sync.timeout_s must be above 0"),
    ],
)
def test_what_cannot_work_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        validated(composed(*overrides), TrainConfig)
    assert "5ec4e7" not in str(caught.value)


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_a_run_that_needs_a_gpu_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"sync={way} carries weights from GPU memory"):
        train(validated(composed(f"sync={way}"), TrainConfig), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_a_folder_of_other_files_is_refused(tmp_path: Path, resume: str) -> None:
    (tmp_path / "README.md").touch()
    told = r"output_dir must be a new folder, an empty one or that of a run, but .* holds README\.md and no run"
    with pytest.raises(ConfigError, match=told):
        train(validated(composed(f"resume={resume}"), TrainConfig), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_folder_without_other_files_or_of_a_run_is_not_refused(tmp_path: Path) -> None:
    refuse_other_files(tmp_path / "new")
    (tmp_path / ".hydra").mkdir()
    for name in (".lock", "train.log", "log.txt"):  # of a run that was killed as it began, Hydra and the pool of runs
        (tmp_path / name).touch()
    refuse_other_files(tmp_path)
    for name in ("config.yaml", "engine.log", "samples.jsonl"):
        (tmp_path / name).touch()
    refuse_other_files(tmp_path)


@pytest.mark.parametrize("profile", ["paper", "single_gpu"])
def test_a_profile_for_gpus_is_refused_without_one_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cfg = validated(composed(f"profile={profile}", f"model.path={tmp_path}"), TrainConfig)
    told = rf"device=gpu needs GPUs \(learner\.ranks={cfg.learner.ranks}, .*torch finds none here: .*profile=embedded"
    ways: list[Callable[[], object]] = [
        lambda: train(cfg, tmp_path / "run"),
        lambda: run_missing([Job(tmp_path / "run", [], cfg)], tmp_path, 1),
        lambda: one_engine(cfg, tmp_path, tmp_path, ExitStack()),
    ]
    for way in ways:
        with pytest.raises(ConfigError, match=told):
            way()
    assert list(tmp_path.iterdir()) == []


def test_how_the_engine_is_reached_does_not_change_what_a_run_computes() -> None:
    identity = validated(composed(), TrainConfig).identity()
    for other in ("sync=nccl", "rollout.servers=2", "rollout.tensor_parallel=2", f"rollout.url={LISTS}", "device=gpu"):
        assert validated(composed(other), TrainConfig).identity() == identity
