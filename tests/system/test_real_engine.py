"""The real vLLM server with a tiny random model: what it samples, what it says of it, and whose weights it holds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import psutil
import pytest
import requests
import torch

from oar.common.errors import EngineError
from oar.config.evaluation import Sampling
from oar.rollout.client.vllm import UNKNOWN_VERSION, EngineClient
from oar.rollout.server.engine import EngineOptions, VllmEngine
from oar.rollout.sync.checkpoint import CheckpointSync, transfer_folder
from oar.rollout.types import Rollout
from tests.conftest import EOS, PATIENCE_S, SECRETS, TOKEN, tiny_model

pytestmark = pytest.mark.engine

PROMPTS = [[1, *range(10 + i, 30 + 2 * i)] for i in range(12)]


@pytest.fixture
def client(engine: VllmEngine) -> EngineClient:
    return EngineClient(engine.url, timeout_s=120.0, token=TOKEN)


@pytest.fixture
def sync(client: EngineClient, tmp_path: Path) -> CheckpointSync:
    """The engine holds `tiny_model(0)` as version 0, whatever was there before."""
    sync = CheckpointSync(client, transfer_folder(tmp_path, None, 0))
    sync.push(tiny_model(0), 0)
    return sync


def largest_logprob_difference(seed: int, groups: Sequence[Sequence[Rollout]], temperature: float) -> float:
    """Sampler logprobs against a float32 forward of `tiny_model(seed)`, in nats."""
    model, worst = tiny_model(seed), 0.0
    for rollout in (rollout for group in groups for rollout in group):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1] / temperature
        ours = logits.log_softmax(-1).gather(1, torch.tensor(rollout.completion_ids)[:, None])[:, 0]
        worst = max(worst, (ours - torch.tensor(rollout.sampler_logprobs)).abs().max().item())
    return worst


def test_what_comes_back_has_the_shape_that_was_asked_for(client: EngineClient, sync: CheckpointSync) -> None:
    assert client.health()
    assert client.model_info().max_model_len == 512
    groups = client.generate(PROMPTS, Sampling(4, 1.0, 60), seed=1, expected_version=0)
    assert [len(group) for group in groups] == [4] * len(PROMPTS)
    reasons = set()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for rollout in group:
            assert list(rollout.prompt_ids) == prompt
            assert len(rollout.completion_ids) == len(rollout.sampler_logprobs) <= 60
            assert (rollout.finish_reason == "stop") == (rollout.completion_ids[-1] == EOS)
            assert EOS not in rollout.completion_ids[:-1]
            reasons.add(rollout.finish_reason)
    assert reasons == {"stop", "length"}


def test_completions_end_where_they_are_told_to(client: EngineClient, sync: CheckpointSync) -> None:
    """At an id, at a string, and at the EOS still; what ended it stays in the ids, and the logprobs are those without it."""
    ids_that_end, strings_that_end = (17, 40), ("w50w", "w61")  # this tokenizer writes its words without blanks
    plain = Sampling(4, 1.0, 60)
    told = replace(plain, stop=strings_that_end, stop_token_ids=ids_that_end)
    free = client.generate(PROMPTS, plain, seed=1, expected_version=0)
    ended = client.generate(PROMPTS, told, seed=1, expected_version=0)
    shorter = 0
    for before, after in zip(chain(*free), chain(*ended), strict=True):
        ids = list(before.completion_ids)
        text = ["".join(f"w{token}" for token in ids[: end + 1]) for end in range(len(ids))]
        stops = [
            end for end in range(len(ids)) if ids[end] in ids_that_end or any(s in text[end] for s in strings_that_end)
        ]
        length = min([*stops, len(ids) - 1]) + 1
        assert list(after.completion_ids) == ids[:length]
        assert after.sampler_logprobs == before.sampler_logprobs[:length]
        assert after.finish_reason == ("stop" if stops else before.finish_reason)
        shorter += length < len(ids)
    assert shorter > 10


@pytest.mark.parametrize(("count", "n", "tokens"), [(16, 8, 96), (100, 4, 32)])
def test_the_same_seed_gives_the_same_bits(
    client: EngineClient, sync: CheckpointSync, count: int, n: int, tokens: int
) -> None:
    prompts = [[1, *range(4 + i % 40, 20 + i)] for i in range(count)]
    sampling = Sampling(n, 1.0, tokens)
    first = client.generate(prompts, sampling, seed=7, expected_version=0)
    assert client.generate(prompts, sampling, seed=7, expected_version=0) == first
    sync.push(tiny_model(0), 0)
    assert client.generate(prompts, sampling, seed=7, expected_version=0) == first
    # Whatever shares the batch: alone, a prompt gets what it got among the others.
    assert client.generate(prompts[:1], sampling, seed=7, expected_version=0) == first[:1]
    assert client.generate(prompts, sampling, seed=8, expected_version=0) != first


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_logprobs_the_same_tokens_come_back(
    client: EngineClient, sync: CheckpointSync, temperature: float
) -> None:
    sampling, seeds = Sampling(4 if temperature else 1, temperature, 60), list(range(len(PROMPTS)))
    told, bare = (
        dict(client.stream(PROMPTS, sampling, seeds=seeds, expected_version=0, logprobs=logprobs))
        for logprobs in (True, False)
    )
    assert {rollout.sampler_logprobs for group in bare.values() for rollout in group} == {()}
    emptied = {at: [replace(rollout, sampler_logprobs=()) for rollout in group] for at, group in told.items()}
    assert bare == emptied


def test_equal_prompts_of_one_call_get_noise_of_their_own(client: EngineClient, sync: CheckpointSync) -> None:
    groups = client.generate([PROMPTS[0]] * 4, Sampling(4, 1.0, 32), seed=7, expected_version=0)
    assert len({rollout.completion_ids for group in groups for rollout in group}) == 16


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_logprobs_are_those_of_the_sampled_distribution(
    client: EngineClient, sync: CheckpointSync, temperature: float
) -> None:
    groups = client.generate(PROMPTS, Sampling(4, temperature, 64), seed=3, expected_version=0)
    assert largest_logprob_difference(0, groups, temperature) < 1e-5


def test_greedy_takes_the_most_likely_token(client: EngineClient, sync: CheckpointSync) -> None:
    groups = client.generate(PROMPTS, Sampling(1, 0.0, 32), seed=3, expected_version=0)
    assert largest_logprob_difference(0, groups, 1.0) < 1e-5
    model = tiny_model(0)
    for (rollout,) in groups:
        with torch.no_grad():
            logits = model(torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0]
        assert logits[len(rollout.prompt_ids) - 1 : -1].argmax(-1).tolist() == list(rollout.completion_ids)


def test_a_push_brings_other_weights_and_their_version(client: EngineClient, sync: CheckpointSync) -> None:
    long_prompt = [[1, *(4 + (7 * i) % 120 for i in range(300))]]  # long enough to be cached
    sampling = Sampling(4, 1.0, 64)
    before = client.generate(PROMPTS + long_prompt, sampling, seed=5, expected_version=0)
    assert largest_logprob_difference(1, before, 1.0) > 1.0, "the two models are too alike for this test"
    sync.push(tiny_model(1), 1)
    after = client.generate(PROMPTS + long_prompt, sampling, seed=5, expected_version=1)
    assert largest_logprob_difference(1, after, 1.0) < 1e-5
    assert {rollout.weight_version for group in after for rollout in group} == {1}
    with pytest.raises(EngineError, match="expected weight version 0, but the engine has 1"):
        client.generate(PROMPTS, sampling, seed=5, expected_version=0)
    sync.push(tiny_model(0), 0)  # the next run on the same server
    assert client.generate(PROMPTS + long_prompt, sampling, seed=5, expected_version=0) == before


def test_no_route_opens_without_the_token(engine: VllmEngine, client: EngineClient) -> None:
    routes = requests.get(f"{engine.url}/openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30).json()
    assert {"/collective_rpc", "/inference/v1/generate", "/pause", "/update_weights", "/health"} <= set(routes["paths"])
    for route, methods in routes["paths"].items():
        for method in methods:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                answer = requests.request(method, engine.url + route, headers=headers, json={}, timeout=30)
                assert answer.status_code == 401, f"{method} {route}"
    with pytest.raises(EngineError, match=r"HTTP 401: .*OAR_ENGINE_TOKEN"):
        EngineClient(engine.url, 30.0).weight_version()
    assert client.health()


def test_web_pages_are_kept_out(engine: VllmEngine) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://localhost:3000"}
    assert requests.post(f"{engine.url}/collective_rpc", headers=headers, json={}, timeout=30).status_code == 403


def test_no_secret_is_where_others_see_it(engine: VllmEngine) -> None:
    """Not on a command line, not in the log; and the engine itself gets none but its own token."""
    guardian = psutil.Process(engine._process.pid)  # type: ignore[union-attr]
    family = [guardian, *guardian.children(recursive=True)]
    told = " ".join(word for process in family for word in process.cmdline()) + engine.tail(10**6)
    server = family[1].environ()
    assert "vllm.entrypoints.openai.api_server" in family[1].cmdline()
    assert server["OAR_ENGINE_TOKEN"] == TOKEN
    for secret in (TOKEN, *SECRETS.values()):
        assert secret not in told
        assert secret == TOKEN or secret not in server.values()
    assert server["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "0"


@pytest.mark.slow
def test_a_server_that_was_killed_leaves_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    """SIGKILL of the API server, then of the supervisor of another one: vLLM's own children would live on for ever."""
    options = EngineOptions(tiny_model_dir, tmp_path / "log", max_model_len=128)
    with VllmEngine(options) as engine:
        assert EngineClient(engine.url, 5.0, engine.token).weight_version() == UNKNOWN_VERSION
        for route in (
            "/health",
            "/weight_info",
            "/collective_rpc",
        ):  # nobody else on the machine knows its random token
            assert requests.get(engine.url + route, timeout=30).status_code == 401
        guardian = engine._process.pid  # type: ignore[union-attr]
        family = descendants(guardian)
        assert len(family) >= 2, "vLLM no longer starts children; is this test still needed?"
        api_server = psutil.Process(guardian).children()[0]
        api_server.kill()
        wait_until_gone(family, within_s=PATIENCE_S)
        assert wait_for_code(engine, within_s=PATIENCE_S) == 128 + signal.SIGKILL
    assert not EngineClient(engine.url, 5.0, engine.token).health()


@pytest.mark.slow
def test_a_supervisor_that_was_killed_leaves_no_engine(tiny_model_dir: Path, tmp_path: Path) -> None:
    supervisor = (
        "import sys, time; from pathlib import Path; from oar.rollout.server.engine import EngineOptions, VllmEngine\n"
        "if __name__ == '__main__':\n"
        "    engine = VllmEngine(EngineOptions(Path(sys.argv[1]), Path(sys.argv[2]), max_model_len=128))\n"
        "    engine.start(); print(engine._process.pid, flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", supervisor, str(tiny_model_dir), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        guardian = int(process.stdout.readline())
        family = [psutil.Process(guardian), *descendants(guardian)]
        process.kill()
        process.wait()
        wait_until_gone(family, within_s=PATIENCE_S)


def test_stop_leaves_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    with VllmEngine(EngineOptions(tiny_model_dir, tmp_path / "log", max_model_len=128)) as engine:
        family = descendants(engine._process.pid)  # type: ignore[union-attr]
        mapped = [mapping.path for process in family for mapping in process.memory_maps()]
        shared_memory = [path for path in mapped if path.startswith("/dev/shm/")]
    assert shared_memory, "vLLM no longer uses shared memory; is this still worth a look?"
    wait_until_gone(family, within_s=0)
    assert not any(os.path.exists(path) for path in shared_memory)
    engine.stop()


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process], within_s: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    assert not alive


def wait_for_code(engine: VllmEngine, within_s: float) -> int | None:
    deadline = time.monotonic() + within_s
    while engine.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return engine.poll()
