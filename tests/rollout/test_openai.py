"""A server that knows texts alone, and all that it may do wrong."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oar.common.errors import EngineError
from oar.config.evaluation import Sampling
from oar.rollout.client.openai import OpenAIClient, TextCompletion
from tests.conftest import in_time, start_fake_engine
from tests.rollout.fake_openai import said

PROMPTS = ["one and one", "two and two"]
SAMPLING = Sampling(n=3, temperature=0.6, max_new_tokens=4, top_p=0.95)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a fake server; returns its URL. All are ended after the test."""
    with ExitStack() as stack:

        def start(*arguments: str) -> str:
            process, url = start_fake_engine(tmp_path / "fake.log", *arguments, server="fake_openai")
            stack.enter_context(process)
            return url

        yield start


def drawn(url: str, prompts: list[str], seeds: list[int], timeout_s: float = 30.0) -> dict[int, list[TextCompletion]]:
    return dict(OpenAIClient(url, timeout_s).stream(prompts, [SAMPLING] * len(prompts), seeds=seeds))


def test_texts_come_with_their_prompt_and_in_order(fake: Callable[..., str]) -> None:
    seeds = [5, 2**62 + 7]  # the second is larger than a plain server takes
    groups = drawn(fake(), PROMPTS, seeds)
    for index, seed in enumerate((5, (2**62 + 7) % 2**31)):
        request = {"prompt": PROMPTS[index], "seed": seed, "temperature": 0.6}
        assert groups[index] == [TextCompletion(said(request, at), "stop") for at in range(3)]


def test_no_prompts_ask_nothing(fake: Callable[..., str]) -> None:
    assert drawn(fake("--fault", "http_500"), [], []) == {}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("http_500", "HTTP 500: .*CUDA out of memory"),
        ("cut", "cut off its answer to /v1/completions"),
        ("die", "is gone|cut off|did not answer"),
        ("hang", r"did not answer \S+ within 2 s"),
        ("bad_json", "broken JSON"),
        ("no_model", "must name a model"),
        ("missing_choice", "2 completions for a prompt instead of 3"),
        ("no_text", "without text"),
        ("filtered", "'content_filter' instead of 'stop' or 'length'"),
    ],
)
@in_time
def test_a_fault_is_one_sentence_in_bounded_time(fake: Callable[..., str], fault: str, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence) as caught:
        drawn(fake("--fault", fault), PROMPTS * 4, [1] * 8, timeout_s=2.0 if fault == "hang" else 30.0)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
