"""The protocol of a push, against servers that speak it and can fail at every stage of it: order, bounds, and who holds what."""

import ast
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from safetensors.torch import load_file
from torch.storage import TypedStorage

from oar.common.errors import ConfigError, EngineLostError, SyncError
from oar.config import SyncConfig
from oar.model.load import weights_size
from oar.model.parameters import described, full_weights
from oar.rollout.client.servers import engine_at
from oar.rollout.client.vllm import UNKNOWN_VERSION, EngineClient
from oar.rollout.sync import WeightSync, make_sync
from oar.rollout.sync.checkpoint import TMPFS, CheckpointSync, transfer_folder, transfer_folders
from oar.rollout.sync.ipc_handles import handle_from_json, handle_to_json
from oar.rollout.sync.nccl import NcclSync
from tests.conftest import in_time, tiny_model

BEGIN = ["/update_weight_version", "/pause?mode=wait"]
END = ["/reset_prefix_cache", "/resume", "/update_weight_version"]
INIT, START, UPDATE, FINISH, RELOAD = (
    "/init_weight_transfer_engine",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/collective_rpc",
)


class Group:
    """What stands for NCCL's communicator."""

    def __init__(self) -> None:
        self.destroyed = False

    def destroy(self) -> None:
        self.destroyed = True


class LocalSync(NcclSync):
    """`nccl` without a GPU: the learner's side of the transfer does what the test says."""

    def __init__(
        self,
        urls: Sequence[str],
        timeout_s: float = 20.0,
        dtype: torch.dtype | None = None,
        request_timeout_s: float | None = None,
    ) -> None:
        super().__init__(engine_at(urls, request_timeout_s or timeout_s), timeout_s, dtype)
        self.groups: list[Group] = []
        self.join: Callable[[], Any] = lambda: None
        self.send: Callable[[], Any] = lambda: None

    def _invitation(self, world_size: int) -> tuple[dict[str, Any], Callable[[], Any]]:
        def join() -> Group:
            self.join()
            self.groups.append(Group())
            return self.groups[-1]

        return {"world_size": world_size}, join

    def _broadcast(self, weights: Iterator[tuple[str, torch.Tensor]]) -> Callable[[], None]:
        return lambda: self.send()


def calls(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = requests.get(f"{url}/calls", timeout=10).json()["calls"]
    return found


def routes(url: str) -> list[str]:
    return [call["route"] for call in calls(url)]


def version_at(url: str) -> int:
    return EngineClient(url, 10.0).weight_version()


def sync_of(way: str, urls: Sequence[str], folder: Path, timeout_s: float = 20.0) -> WeightSync:
    return LocalSync(urls, timeout_s) if way == "nccl" else CheckpointSync(engine_at(urls, timeout_s), folder)


@pytest.mark.parametrize(
    ("way", "first", "later"),
    [("checkpoint", [RELOAD], [RELOAD]), ("nccl", [INIT, START, UPDATE, FINISH], [START, UPDATE, FINISH])],
)
def test_the_order_of_a_push(
    fake: Callable[..., str], tmp_path: Path, way: str, first: list[str], later: list[str]
) -> None:
    urls = [fake(), fake()]
    sync = sync_of(way, urls, tmp_path / "weights")
    sync.push(tiny_model(0), 0)
    sync.push(tiny_model(0), 1)
    told = [calls(url) for url in urls]
    for one in told:
        assert [call["route"] for call in one] == [*BEGIN, *first, *END, *BEGIN, *later, *END]
        named = [call["body"]["new_version"] for call in one if call["route"] == "/update_weight_version"]
        assert named == [str(UNKNOWN_VERSION), "0", str(UNKNOWN_VERSION), "1"]
    # No server goes on to the next stage before all have done this one; so none has the version before all have the weights.
    for stage in range(1, len(told[0])):
        assert max(one[stage - 1]["at"] for one in told) < min(one[stage]["at"] for one in told)
    assert [version_at(url) for url in urls] == [1, 1]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_workers_are_told(fake: Callable[..., str], dtype: torch.dtype | None) -> None:
    """Ranks follow each other over servers of different sizes; the learner's is 0."""
    urls = [fake("--world-size", "2"), fake("--world-size", "3"), fake()]
    model = tiny_model(0)
    LocalSync(urls, dtype=dtype).push(model, 0)
    infos = [next(call["body"]["init_info"] for call in calls(url) if call["route"] == INIT) for url in urls]
    assert infos == [{"world_size": 7, "rank_offset": offset} for offset in (1, 3, 6)]
    (update,) = (call["body"]["update_info"] for call in calls(urls[2]) if call["route"] == UPDATE)
    named = "float32" if dtype is None else "bfloat16"
    sent = [(name, named, list(weight.shape)) for name, weight in model.state_dict().items()]
    assert list(zip(update["names"], update["dtype_names"], update["shapes"], strict=True)) == sent
    yielded = [(name, weight.dtype, weight.shape) for name, weight in full_weights(model, dtype)]
    assert yielded == described(model, dtype)


def test_a_file_holds_the_engines_type(
    fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(
        EngineClient, "reload_weights", lambda _, folder: found.update(load_file(f"{folder}/model.safetensors"))
    )
    CheckpointSync(engine_at([fake()], 20.0), tmp_path / "weights", torch.bfloat16).push(tiny_model(0), 0)
    expected = {name: weight.to(torch.bfloat16) for name, weight in tiny_model(0).state_dict().items()}
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in found)


def test_the_folder_of_a_push_is_its_owners_alone(
    fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run left there is replaced."""
    folder, modes = tmp_path / "weights", []
    folder.mkdir(mode=0o777)
    (folder / "left").touch()
    look = lambda _, at: modes.append((stat.S_IMODE(Path(at).stat().st_mode), os.listdir(at)))  # noqa: E731
    monkeypatch.setattr(EngineClient, "reload_weights", look)
    CheckpointSync(engine_at([fake()], 20.0), folder).push(tiny_model(0), 0)
    assert modes == [(0o700, ["model.safetensors"])]
    assert not folder.exists()


def test_another_users_folder_is_neither_used_nor_deleted(
    fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "theirs").touch()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    sync = CheckpointSync(engine_at([fake()], 20.0), folder)
    with pytest.raises(SyncError, match=r"cannot write .* to .*weights .*File exists.*sync\.folder"):
        sync.push(tiny_model(0), 0)
    sync.close()
    assert os.listdir(folder) == ["theirs"]


def test_too_little_shared_memory_is_told_and_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    in_memory, in_run = transfer_folders(tmp_path)
    assert (in_memory.parent, in_run.parent) == (TMPFS, tmp_path)
    assert transfer_folder(tmp_path, None, 0) == in_memory
    in_memory.mkdir()  # as a killed run leaves it
    assert transfer_folder(tmp_path, None, 2**60) == in_run
    assert not in_memory.exists()
    assert f"weights pass through {in_run}: /dev/shm has" in capsys.readouterr().out
    assert transfer_folder(tmp_path, tmp_path / "named", 2**60).parent == tmp_path / "named"


def test_the_size_of_weights_is_that_of_the_engines_type(tiny_model_dir: Path) -> None:
    numbers = sum(weight.numel() for weight in tiny_model(0).state_dict().values())
    assert weights_size(tiny_model_dir, "float32") == 4 * numbers
    assert weights_size(tiny_model_dir, "bfloat16") == 2 * numbers


@pytest.mark.parametrize(
    ("way", "at"),
    [(way, at) for way in ("checkpoint", "nccl") for at in ("/pause", "/reset_prefix_cache", "/resume")]
    + [("checkpoint", RELOAD), ("nccl", INIT), ("nccl", START), ("nccl", UPDATE), ("nccl", FINISH)],
)
def test_a_server_that_fails_leaves_no_version_on_any(
    fake: Callable[..., str], tmp_path: Path, way: str, at: str
) -> None:
    good, bad = fake(), fake("--fault", "fails_at", "--at", at)
    for url in (good, bad):
        EngineClient(url, 10.0).set_weight_version(2)
    with pytest.raises(
        EngineLostError, match=rf"weight version 3 did not reach the engine: .*{bad} answered {at}.* HTTP 500"
    ):
        sync_of(way, [good, bad], tmp_path / "weights").push(tiny_model(0), 3)
    assert version_at(good) == version_at(bad) == UNKNOWN_VERSION
    assert at == "/resume" or "/resume" not in routes(good)  # half of the weights must not run
    assert not (tmp_path / "weights").exists()


@in_time
@pytest.mark.parametrize(("way", "at"), [("checkpoint", RELOAD), ("nccl", INIT), ("nccl", UPDATE)])
@pytest.mark.parametrize("fault", ["hangs_at", "dies_at"])
def test_a_server_that_hangs_or_dies_is_noticed_in_time(
    fake: Callable[..., str], tmp_path: Path, way: str, at: str, fault: str
) -> None:
    """The learner's side of a collective hangs with it, which is left behind."""
    good, bad = fake(), fake("--fault", fault, "--at", at)
    EngineClient(good, 10.0).set_weight_version(2)
    sync = sync_of(way, [good, bad], tmp_path / "weights", timeout_s=3.0 if fault == "hangs_at" else 20.0)
    if isinstance(sync, LocalSync):
        sync.join = sync.send = lambda: time.sleep(3600)
    if isinstance(sync, LocalSync) and at == UPDATE:
        sync.join = lambda: None
    with pytest.raises(
        (SyncError, EngineLostError), match=r"did not answer|did not end within 3 s \(sync.timeout_s\)|is gone"
    ):
        sync.push(tiny_model(0), 3)
    assert version_at(good) == UNKNOWN_VERSION
    assert not isinstance(sync, LocalSync) or all(group.destroyed for group in sync.groups)


@in_time
def test_a_transfer_that_hangs_on_the_learners_side_ends_in_time(fake: Callable[..., str]) -> None:
    """As where workers are missing: `world_size` counts three that never come."""
    sync = LocalSync([fake(), fake("--world-size", "4")], timeout_s=1.0, request_timeout_s=20.0)
    sync.join = lambda: time.sleep(3600)
    with pytest.raises(SyncError, match=r"learner's side did not end within 1 s \(sync.timeout_s\)"):
        sync.push(tiny_model(0), 0)


@pytest.mark.parametrize("size", ["0", "null", '"two"', "1.5", "true"])
def test_a_world_size_that_is_none_is_refused(fake: Callable[..., str], size: str) -> None:
    with pytest.raises(SyncError, match=r"/get_world_size must give a number of workers, but says"):
        LocalSync([fake(), fake("--world-size", size)]).push(tiny_model(0), 0)


def test_after_a_failure_another_group_is_opened(fake: Callable[..., str]) -> None:
    url = fake()
    sync = LocalSync([url])

    def fail() -> None:
        raise RuntimeError("NCCL error: unhandled system error\nmore of it")

    sync.send = fail
    with pytest.raises(SyncError, match="learner's side failed: NCCL error: unhandled system error"):
        sync.push(tiny_model(0), 0)
    sync.send = lambda: None
    sync.push(tiny_model(0), 0)
    assert [group.destroyed for group in sync.groups] == [True, False]
    assert version_at(url) == 0


def test_an_update_that_was_left_open_is_ended_first(fake: Callable[..., str]) -> None:
    url = fake("--updating")
    LocalSync([url]).push(tiny_model(0), 0)
    assert routes(url) == [*BEGIN, INIT, START, FINISH, START, UPDATE, FINISH, *END]


def test_close_ends_the_group_and_never_fails(fake: Callable[..., str], tmp_path: Path) -> None:
    url, failing = fake(), fake("--fault", "fails_at", "--at", "/shutdown")
    LocalSync([url]).close()  # nothing was opened
    for urls in ([url], [url, failing]):
        sync = LocalSync(urls)
        sync.push(tiny_model(0), 0)
        sync.close()
        sync.close()
        assert sync.groups[0].destroyed
    assert routes(url).count("/shutdown_weight_transfer_engine") == 2


def test_one_that_fails_first_keeps_no_other_from_leaving(
    fake: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, failing = fake(), fake("--fault", "fails_at", "--at", "/shutdown")
    sync = LocalSync([failing, url])
    sync.push(tiny_model(0), 0)
    monkeypatch.setattr(
        "oar.rollout.sync.nccl.together", lambda works, _: [work() for work in works]
    )  # the slowest threads
    sync.close()
    assert routes(url).count("/shutdown_weight_transfer_engine") == 1
    assert sync.groups[0].destroyed


@pytest.mark.parametrize("way", ["nccl", "ipc"])
def test_what_needs_a_gpu_is_refused_without_one(
    fake: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    url = fake()
    with pytest.raises(
        ConfigError, match=rf"^sync={way} carries weights .* torch finds no GPU here: use sync=checkpoint\.$"
    ):
        make_sync(SyncConfig(way, None, 10.0, 1e-3), engine_at([url], 10.0), tmp_path)
    assert routes(url) == []


def a_handle() -> tuple[Any, ...]:
    """What torch gives for a buffer of 1,000 bytes in GPU memory."""
    size, numbers = torch.Size([1000]), bytes(range(64))
    return (
        *(torch.Tensor, size, (1,), 0, TypedStorage, torch.uint8, 0),
        *(numbers, 1000, 512, False, b"/torch_7_1\x00", 3, numbers[::-1], True),
    )


def test_a_handle_survives_json() -> None:
    made = handle_from_json(handle_to_json(a_handle()))
    assert made[:6] == a_handle()[:6]
    assert made[7:] == a_handle()[7:]


@pytest.mark.parametrize(
    "change",
    [
        {"handle": "not base64!"},
        {"handle": 5},
        {"size": "1000"},
        {"size": True},
        {"storage_offset_bytes": -8},
        {"event_sync_required": 1},
        {"storage_cls": "os.system"},
    ],
)
def test_what_is_no_handle_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="CUDA IPC handle"):
        handle_from_json(handle_to_json(a_handle()) | change)
    with pytest.raises(ValueError, match="CUDA IPC handle"):
        handle_from_json(["handle"])


def test_the_learner_loads_vllm_only_for_ways_that_need_it() -> None:
    """What a module imports when it is imported itself; vLLM takes seconds and memory that training on CPU must not pay."""
    root = Path(__file__).parents[2]
    imported = {}
    for path in (root / "oar").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        froms = {node.module or "" for node in body if isinstance(node, ast.ImportFrom)}
        plain = {name.name for node in body if isinstance(node, ast.Import) for name in node.names}
        imported[".".join(path.relative_to(root).with_suffix("").parts)] = froms | plain
    heavy = {name for name, others in imported.items() if any(other.split(".")[0] == "vllm" for other in others)}
    assert heavy == {"oar.rollout.sync.nccl", "oar.rollout.sync.ipc", "oar.rollout.sync.ipc_worker"}
    assert not [name for name, others in imported.items() if others & heavy]
