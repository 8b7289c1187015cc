"""Two real vLLM servers and their weight-transfer routes: as far as they go without a GPU, and the whole way with gloo."""

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from oar.common.errors import SyncError
from oar.config.evaluation import Sampling
from oar.rollout.client.servers import engine_at
from oar.rollout.client.vllm import Engine, EngineClient
from oar.rollout.server.engine import VllmEngine
from oar.rollout.sync.checkpoint import CheckpointSync
from oar.rollout.sync.ipc_handles import handle_to_json
from oar.rollout.types import Rollout
from tests.conftest import TOKEN, tiny_model, transfer_engine
from tests.rollout.gloo_sync import JOIN_S, GlooSync
from tests.rollout.test_sync import a_handle
from tests.system.test_real_engine import PROMPTS, largest_logprob_difference

pytestmark = pytest.mark.engine

SAMPLING = Sampling(4, 1.0, 48)


@pytest.fixture(scope="module")
def urls(engine: VllmEngine, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A server for sync=nccl and one for sync=ipc."""
    with transfer_engine("ipc", tiny_model_dir, tmp_path_factory.mktemp("second") / "engine.log") as second:
        yield [engine.url, second.url]


@pytest.fixture
def fleet(urls: list[str], tmp_path: Path) -> Engine:
    """Both, with the weights of `tiny_model(0)` as version 0."""
    both = engine_at(urls, 60.0, TOKEN)
    CheckpointSync(both, tmp_path / "weights").push(tiny_model(0), 0)
    return both


def told(url: str, route: str, **body: Any) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = requests.post(url + route, headers=headers, json=body or None, timeout=60)
    error = answer.json().get("error")
    return answer.status_code, answer.json().get("message", "") if error is None else error["message"]


def drawn(engine: Engine, version: int) -> list[list[Rollout]]:
    """Completions, with the version taken off."""
    groups = engine.generate(PROMPTS, SAMPLING, seed=9, expected_version=version)
    return [[replace(rollout, weight_version=0) for rollout in group] for group in groups]


def test_what_the_routes_answer_without_a_gpu(fleet: Engine) -> None:
    """Everything but the transfer itself; vLLM's words, on which `start_weight_update` and this file count."""
    (nccl, ipc), failed = (server.url for server in fleet.servers), "Call to collective_rpc method failed: "
    before = drawn(fleet, 0)
    assert [server.world_size() for server in fleet.servers] == [1, 1]
    names: dict[str, Any] = {"names": ["lm_head.weight"], "dtype_names": ["float32"], "shapes": [[128, 64]]}
    for url in (nccl, ipc):
        assert told(url, "/start_weight_update") == (200, "Weight update started")
        again = "start_weight_update called while a weight update is already active. Call finish_weight_update first."
        assert told(url, "/start_weight_update") == (500, failed + again)

    unique_id = base64.b64encode(bytes(128)).decode()
    info = {"world_size": 2, "rank_offset": 1, "nccl_unique_id_b64": unique_id, "packed": True}
    no_gpu = (500, failed + "Cannot access accelerator device when none is available.")
    assert told(nccl, "/init_weight_transfer_engine", init_info=info) == no_gpu
    not_open = "NCCL weight transfer not initialized. Call init_transfer_engine() first."
    assert told(nccl, "/update_weights", update_info=names) == (500, failed + not_open)
    unasked = "finish_weight_update called without a matching start_weight_update."
    assert told(nccl, "/finish_weight_update") == (500, failed + unasked)  # the update that failed is over

    assert told(ipc, "/init_weight_transfer_engine", init_info={"packed": True})[0] == 200
    pickled = names | {"ipc_handles_pickled": base64.b64encode(b"a pickle").decode(), "tensor_sizes": [32768]}
    refused = "ipc_handles must be an object of one handle by GPU."
    assert told(ipc, "/update_weights", update_info=pickled) == (500, failed + refused)
    assert told(ipc, "/start_weight_update")[0] == 200
    handles = names | {"ipc_handles": {"GPU-1": handle_to_json(a_handle())}, "tensor_sizes": [32768]}
    status, why = told(ipc, "/update_weights", update_info=handles)
    assert status == 500
    assert "CUDA" in why  # the handle was read; there is no GPU to find it on

    for url in (nccl, ipc):
        assert told(url, "/start_weight_update")[0] == told(url, "/finish_weight_update")[0] == 200
    assert drawn(fleet, 0) == before


def test_a_paused_server_waits(fleet: Engine) -> None:
    server, impatient = fleet.servers[0], EngineClient(fleet.servers[0].url, 1.0, TOKEN)
    before = drawn(server, 0)
    server.pause()
    server.pause()
    with pytest.raises(Exception, match="did not answer /inference/v1/generate within 1 s"):
        impatient.complete(PROMPTS[0], SAMPLING, seed=1, version=0)
    server.reset_prefix_cache()
    server.resume()
    assert drawn(server, 0) == before


def test_two_servers_draw_what_one_draws(fleet: Engine) -> None:
    both = drawn(fleet, 0)
    assert [drawn(server, 0) for server in fleet.servers] == [both, both]


def test_weights_reach_all_servers_over_a_broadcast(fleet: Engine, urls: list[str]) -> None:
    for url in urls:
        assert told(url, "/collective_rpc", method="use_gloo")[0] == 200
    before = drawn(fleet, 0)
    sync = GlooSync(engine_at(urls, 60.0, TOKEN), timeout_s=30.0)
    sync.push(tiny_model(1), 1)
    after = fleet.generate(PROMPTS[:2], SAMPLING, seed=9, expected_version=1)
    assert largest_logprob_difference(0, after, 1.0) > 1.0
    assert largest_logprob_difference(1, after, 1.0) < 1e-5
    assert [drawn(server, 1) for server in fleet.servers] == [drawn(fleet, 1)] * 2
    fleet.servers[1].pause()
    fleet.servers[1].start_weight_update()  # as a learner leaves it that is killed here
    sync.close()
    sync.push(tiny_model(0), 2)
    assert drawn(fleet, 2) == before
    sync.close()


def test_a_group_that_is_never_whole_is_given_up(fleet: Engine, urls: list[str]) -> None:
    """A worker too few: both sides wait, the learner for as long as it may, and afterwards the servers are as good as before."""
    for url in urls:
        assert told(url, "/collective_rpc", method="use_gloo")[0] == 200

    class TooMany(GlooSync):
        claim = 1

    begin = time.monotonic()
    with pytest.raises(SyncError, match=r"did not end within 2 s \(sync.timeout_s\)"):
        TooMany(engine_at(urls, 60.0, TOKEN), timeout_s=2.0).push(tiny_model(1), 1)
    assert time.monotonic() - begin < JOIN_S
    GlooSync(engine_at(urls, 60.0, TOKEN), timeout_s=JOIN_S + 30).push(tiny_model(1), 1)
    assert fleet.weight_version() == 1
