"""Several servers spoken to as one: prompts are spread, results are those of one server, and every answer is checked."""

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import requests

from oar.common.errors import DataError, EngineError
from oar.config.evaluation import Sampling
from oar.rollout.client.parallel import together
from oar.rollout.client.servers import EngineFleet, engine_at
from oar.rollout.client.vllm import GENERATE, UNKNOWN_VERSION, EngineClient
from tests.conftest import PATIENCE_S, in_time

PROMPTS = [[5, 6, 7], [8, 9], [10, 11], [12], [13, 14]]
SAMPLING = Sampling(n=2, temperature=1.0, max_new_tokens=4)


def drawn_at(url: str) -> list[tuple[list[int], int]]:
    """Prompt and seed of every completion a fake engine was asked for."""
    calls = requests.get(f"{url}/calls", timeout=10).json()["calls"]
    asked = [call["body"] for call in calls if call["route"] == GENERATE]
    return sorted((body["token_ids"], body["sampling_params"]["seed"]) for body in asked)


def test_one_url_is_one_client(fake: Callable[..., str]) -> None:
    assert isinstance(engine_at([fake()], 10.0), EngineClient)


def test_prompts_go_round_and_keep_their_seeds(fake: Callable[..., str]) -> None:
    alone, *two = fake(), fake(), fake()
    for url in (alone, *two):
        EngineClient(url, 10.0).set_weight_version(0)
    one = engine_at([alone], 10.0).generate(PROMPTS, SAMPLING, seed=3, expected_version=0)
    assert engine_at(two, 10.0).generate(PROMPTS, SAMPLING, seed=3, expected_version=0) == one
    shares = [drawn_at(url) for url in two]
    assert [prompt for prompt, _ in shares[0]] == sorted(PROMPTS[0::2])
    assert [prompt for prompt, _ in shares[1]] == sorted(PROMPTS[1::2])
    assert sorted(shares[0] + shares[1]) == drawn_at(alone)


def test_a_fleet_is_as_healthy_as_its_worst_server(fake: Callable[..., str]) -> None:
    good = fake()
    assert engine_at([good, fake()], 10.0).health()
    assert not engine_at([good, "http://127.0.0.1:9"], 10.0).health()


def test_servers_with_different_weights_draw_nothing(fake: Callable[..., str]) -> None:
    urls = [fake(), fake()]
    fleet = engine_at(urls, 10.0)
    assert fleet.weight_version() == UNKNOWN_VERSION
    fleet.servers[0].set_weight_version(4)
    with pytest.raises(EngineError, match=rf"different weight versions \({urls[0]} 4, {urls[1]} -1\).*sync failed\.$"):
        fleet.generate(PROMPTS, SAMPLING, seed=3, expected_version=4)
    fleet.servers[1].set_weight_version(4)
    with pytest.raises(EngineError, match="expected weight version 5, but the engine has 4"):
        fleet.generate(PROMPTS, SAMPLING, seed=3, expected_version=5)
    assert [drawn_at(url) for url in urls] == [[], []]


def test_servers_of_different_models_are_refused(fake: Callable[..., str]) -> None:
    fleet = engine_at([fake(), fake("--model", "other")], 10.0)
    with pytest.raises(EngineError, match=r"must serve one model, but: http.* policy, http.* other\.$"):
        fleet.generate(PROMPTS, SAMPLING, seed=3, expected_version=0)


def test_a_prompt_must_fit_the_smallest_server(fake: Callable[..., str]) -> None:
    fleet = engine_at([fake(), fake("--max-model-len", "32")], 10.0)
    with pytest.raises(DataError, match="prompt 0 has 29 tokens, but must have 1 to 28"):
        fleet.generate([[5] * 29], SAMPLING, seed=3, expected_version=-1)


@pytest.mark.parametrize("fault", ["http_500", "die_after_n_requests"])
def test_the_error_of_one_server_ends_it_for_all(fake: Callable[..., str], fault: str) -> None:
    bad = fake("--fault", fault, "--after", "1")
    fleet = EngineFleet([EngineClient(fake(), 30.0), EngineClient(bad, 30.0)])
    with pytest.raises(EngineError, match=bad):
        fleet.generate(PROMPTS, SAMPLING, seed=3, expected_version=-1)


@in_time
def test_the_first_error_of_works_side_by_side_is_told_at_once() -> None:
    def fail() -> None:
        raise EngineError("first.")

    never = threading.Event().wait
    with pytest.raises(EngineError, match="first"):
        together([never, fail])
    with pytest.raises(TimeoutError):
        together([never, lambda: None], timeout_s=0.2)
    assert together([lambda: 1, lambda: 2], timeout_s=PATIENCE_S) == [1, 2]


def test_the_end_of_the_process_waits_for_no_request() -> None:
    hanging = "import time; from oar.rollout.client.parallel import together; together([lambda: time.sleep(3600), lambda: 1 / 0])"
    command = [sys.executable, "-c", hanging]
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "ZeroDivisionError" in process.stderr
