"""Whatever a server does wrong, the caller gets the right error, one sentence, in bounded time."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from oar.common.errors import ConfigError, DataError, EngineError, EngineLostError, OarError, SyncError
from oar.config import TrainConfig, validated
from oar.config.evaluation import Sampling
from oar.launch.supervisor import refuse_silent_servers
from oar.rollout.client.http import HttpServer
from oar.rollout.client.vllm import UNKNOWN_VERSION, EngineClient
from oar.rollout.sync.checkpoint import CheckpointSync
from tests.config.test_config import composed
from tests.conftest import in_time, start_fake_engine, tiny_model

PROMPTS = [[5, 6, 7], [8, 9]]
SAMPLING = Sampling(n=2, temperature=1.0, max_new_tokens=4)


def client_of(url: str, timeout_s: float = 30.0) -> EngineClient:
    EngineClient(url, 30.0).set_weight_version(0)
    return EngineClient(url, timeout_s)


def test_good_answers_become_rollouts(fake: Callable[..., str]) -> None:
    client = client_of(fake())
    groups = client.generate(PROMPTS, SAMPLING, seed=1, expected_version=0)
    assert [[rollout.prompt_ids for rollout in group] for group in groups] == [[(5, 6, 7)] * 2, [(8, 9)] * 2]
    assert all(r.completion_ids == (3, 4, 5, 6) and r.weight_version == 0 for group in groups for r in group)
    assert client.health()
    assert client.model_info().max_model_len == 64


def test_logprobs_that_nobody_asked_for_are_not_waited_for(fake: Callable[..., str]) -> None:
    client = client_of(fake())
    drawn = dict(client.stream(PROMPTS, SAMPLING, seeds=[1, 2], expected_version=0, logprobs=False))
    assert {rollout.completion_ids for group in drawn.values() for rollout in group} == {(3, 4, 5, 6)}
    assert {rollout.sampler_logprobs for group in drawn.values() for rollout in group} == {()}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("die_after_n_requests", "is gone|cut off"),
        ("hang", r"did not answer \S+ within 2 s"),
        ("bad_json", "broken JSON"),
        ("truncated_json", "broken JSON"),
        ("http_500", "HTTP 500: .*EngineCore encountered an issue"),
        ("nan_logprobs", "not a finite number"),
        ("fewer_completions", "1 completions for a prompt instead of 2"),
        ("short_logprobs", "3 logprobs for 4 tokens"),
        ("other_prompt", "other prompt token ids"),
        ("aborted", "'abort'"),
    ],
)
@in_time
def test_a_fault_is_an_engine_error_in_bounded_time(fake: Callable[..., str], fault: str, sentence: str) -> None:
    client = client_of(fake("--fault", fault), timeout_s=2.0 if fault == "hang" else 30.0)
    with pytest.raises(EngineError, match=sentence) as caught:
        client.generate(PROMPTS * 4, SAMPLING, seed=1, expected_version=0)
    assert one_sentence(caught.value)


def test_a_server_that_wants_another_token_is_told_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = "right" * 4

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(200 if self.headers["Authorization"] == f"Bearer {right}" else 401)

    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        rollout = validated(composed(f"rollout.url=http://127.0.0.1:{server.server_port}"), TrainConfig).rollout
        monkeypatch.setenv("OAR_ENGINE_TOKEN", "wrong" * 4)
        with pytest.raises(ConfigError, match="must get its own token, but refuses the one that is shown"):
            refuse_silent_servers(rollout)
        monkeypatch.setenv("OAR_ENGINE_TOKEN", right)
        refuse_silent_servers(rollout)
        server.shutdown()


def test_a_server_of_web_pages_is_told_to_be_one(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(EngineError, match=r"HTTP 404: a web page, so it is no vLLM server\.$"):
            EngineClient(url, 30.0).model_info()
        with pytest.raises(ConfigError, match=f"rollout.url must be the address of a running vLLM server, but {url} "):
            refuse_silent_servers(validated(composed(f"rollout.url={url}"), TrainConfig).rollout)
        server.shutdown()


@pytest.mark.parametrize(
    ("fault", "lost"), [("die_after_n_requests", True), ("hang", True), ("http_500", True), ("truncated_json", False)]
)
def test_a_lost_engine_is_told_from_one_that_answers_wrongly(fake: Callable[..., str], fault: str, lost: bool) -> None:
    client = client_of(fake("--fault", fault), timeout_s=1.0 if fault == "hang" else 30.0)
    with pytest.raises(EngineError) as caught:
        client.generate(PROMPTS * 4, SAMPLING, seed=1, expected_version=0)
    assert isinstance(caught.value, EngineLostError) == lost


def test_a_dead_server_is_told_from_a_busy_one(fake: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = fake()
    assert not HttpServer(url, 1.0).refuses("/health")
    with monkeypatch.context() as patient:
        patient.setattr("oar.rollout.client.http.BUSY_S", 20.0)
        assert HttpServer(url, 1.0).refuses("/nowhere")  # it answers, but not with 200
    with socket.create_server(("127.0.0.1", 0)) as busy:  # takes connections and never answers
        server = HttpServer(f"http://127.0.0.1:{busy.getsockname()[1]}", 1.0)
        assert not server.refuses("/health")
    assert server.refuses("/health")  # nobody listens


def test_a_server_that_takes_no_connection_is_told_from_one_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oar.rollout.client.http.CONNECT_S", 0.2)
    with ExitStack() as opened:
        full = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # nobody takes them, and the queue is full
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(EngineLostError, match=r"took no connection within 0\.2 s"):
            HttpServer(f"http://127.0.0.1:{full.getsockname()[1]}", 600.0).call("GET", "/health")


def test_a_push_to_a_lost_engine_says_so(fake: Callable[..., str], tmp_path: Path) -> None:
    client = client_of(fake("--fault", "reload_dies"))
    with pytest.raises(EngineLostError, match="is gone"):
        CheckpointSync(client, tmp_path / "weights").push(tiny_model(0), 1)
    assert not (tmp_path / "weights").exists()


def test_a_wrong_version_is_refused_before_and_after(fake: Callable[..., str]) -> None:
    with pytest.raises(EngineError, match="expected weight version 7, but the engine has 0; another run") as caught:
        client_of(fake()).generate(PROMPTS, SAMPLING, seed=1, expected_version=7)
    assert one_sentence(caught.value)
    with pytest.raises(EngineError, match="expected weight version 0, but the engine has 99"):
        client_of(fake("--fault", "wrong_version")).generate(PROMPTS, SAMPLING, seed=1, expected_version=0)


def test_a_version_that_changes_during_generation_is_refused(
    fake: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(fake())
    answers = iter([0, 1])
    monkeypatch.setattr(client, "weight_version", lambda: next(answers))
    with pytest.raises(EngineError, match="expected weight version 0, but the engine has 1"):
        client.generate(PROMPTS, SAMPLING, seed=1, expected_version=0)


def test_a_prompt_that_does_not_fit_is_refused(fake: Callable[..., str]) -> None:
    client = client_of(fake())
    client.generate([[5] * 60], SAMPLING, seed=1, expected_version=0)
    with pytest.raises(DataError, match=r"prompt 1 has 61 tokens, but must have 1 to 60 .*rollout.max_model_len"):
        client.generate([[5], [5] * 61], SAMPLING, seed=1, expected_version=0)
    with pytest.raises(DataError, match="prompt 0 has 0 tokens"):
        client.generate([[]], SAMPLING, seed=1, expected_version=0)


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    process, url = start_fake_engine(tmp_path / "fake.log")
    process.stop()
    client = EngineClient(url, timeout_s=2.0)
    assert not client.health()
    with pytest.raises(EngineError, match="is gone"):
        client.weight_version()


def test_a_push_sets_the_version_last_and_leaves_no_file(fake: Callable[..., str], tmp_path: Path) -> None:
    client = client_of(fake())
    folder = tmp_path / "weights"
    CheckpointSync(client, folder).push(tiny_model(0), 3)
    assert client.weight_version() == 3
    assert not folder.exists()


@pytest.mark.parametrize(("fault", "sentence"), [("no_reload", "HTTP 404"), ("busy_cache", "prefix cache")])
def test_a_push_that_fails_leaves_no_trusted_version(
    fake: Callable[..., str], tmp_path: Path, fault: str, sentence: str
) -> None:
    client = client_of(fake("--fault", fault))
    folder = tmp_path / "weights"
    with pytest.raises(SyncError, match=f"weight version 1 did not reach the engine: .*{sentence}"):
        CheckpointSync(client, folder).push(tiny_model(0), 1)
    assert client.weight_version() == UNKNOWN_VERSION
    assert not folder.exists()


def test_a_push_whose_version_does_not_stick_is_refused(fake: Callable[..., str], tmp_path: Path) -> None:
    client = client_of(fake("--fault", "wrong_version"))
    with pytest.raises(SyncError, match="reports weight version 99 after being given 1"):
        CheckpointSync(client, tmp_path / "weights").push(tiny_model(0), 1)


def test_a_folder_that_cannot_be_written_is_named(fake: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(SyncError, match=r"cannot write .* GiB of weights to .*taken.*sync.folder"):
        CheckpointSync(client_of(fake()), tmp_path / "taken" / "weights").push(tiny_model(0), 1)


def one_sentence(error: OarError) -> bool:
    return "\n" not in str(error) and str(error).endswith(".") and len(str(error)) < 400
