"""What several test files share: a tiny model, and a real engine that is started once per session."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: several workers, and what they start, share the cores

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from oar.common.processes import ChildProcess
from oar.learner.checkpoint import save_checkpoint
from oar.rollout.server.engine import EngineOptions, VllmEngine

torch.set_num_threads(1)

# A loaded machine is no failure, and no change fails by what chance finds on its day; --hypothesis-profile=search looks further.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", parent=settings.get_profile("search"), derandomize=True)
settings.load_profile("patient")

# Both end what hangs, and say nothing of how fast a machine is.
PATIENCE_S = 120.0
in_time = pytest.mark.timeout(300)

EOS = 2
TOKEN = "what-the-engine-asks-for"
SECRETS = {
    "WANDB_API_KEY": "5ec4e7" * 7,
    "HF_TOKEN": "hf_5ec4e7" * 4,
    "OAR_ENGINE_TOKEN": "the-token-of-another-engine",
}
# What stands in a file whose tests use an engine of a whole session.
ENGINES = {"base engine": r"\b(base_engine|finished_run): ", "tiny engine": r"\bengine: VllmEngine"}
FAKE_SERVERS = "tests.rollout"  # modules: what they import of this repository is not installed


def start_fake_engine(log_path: Path, *arguments: str, server: str = "fake_engine") -> tuple[ChildProcess, str]:
    """A fake server (`tests/rollout/fake_*.py`) on a free port, and its URL; the caller stops it."""
    process = ChildProcess([sys.executable, "-m", f"{FAKE_SERVERS}.{server}", *arguments], log_path=log_path)
    wait_until(lambda: "listening on" in process.tail() or process.poll() is not None, "the fake engine does not start")
    assert process.poll() is None, process.tail()
    return process, f"http://127.0.0.1:{process.tail().split()[-1]}"


def wait_until(happened: Callable[[], bool], otherwise: str) -> None:
    """Look again and again; fails with `otherwise` when PATIENCE_S seconds have passed."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def tiny_model(seed: int) -> Qwen2ForCausalLM:
    """A random, untied Qwen2 with a vocabulary of 128 whose next-token distributions are far from uniform."""
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,  # vLLM on CPU wants heads of a multiple of 32
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


def group_of(nodeid: str) -> str:
    """The engine that the test's file shares with others, else the file."""
    file = nodeid.partition("::")[0]
    source = (Path(__file__).parents[1] / file).read_text()
    return next((engine for engine, used in ENGINES.items() if re.search(used, source)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker gets one group of tests at a time. xdist's own groups (`loadgroup`) do not work with this release of pytest."""
    from xdist.scheduler import LoadFileScheduling  # here: the GPU check runs some of the tests where there is no xdist

    class ByEngine(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByEngine(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups come first, so that no worker ends alone: those of an engine, then files with whole runs."""
    order = {engine: place for place, engine in enumerate(ENGINES)}
    items.sort(key=lambda item: order.get(group_of(item.nodeid), 2 if item.get_closest_marker("system") else 3))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's GPU, where it has one, is not seen."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_model(0)` and a word-level tokenizer as a checkpoint of a run, which vLLM must be able to start from."""
    model = tiny_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    model(torch.arange(4)[None]).logits.sum().backward()
    optimizer.step()
    words = {"<pad>": 0, "<bos>": 1, "<eos>": EOS, "<unk>": 3, **{f"w{i}": i for i in range(4, 128)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    return save_checkpoint(tmp_path_factory.mktemp("tiny_model"), 1, model, wrapped, optimizer, {}, keep=1)


@pytest.fixture(scope="session")
def engine(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """A running vLLM server with the tiny model that asks for TOKEN, started by somebody who has other secrets.

    Tests that push weights must not count on the ones before.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, secret in SECRETS.items():
            patch.setenv(name, secret)
        running = transfer_engine("nccl", tiny_model_dir, tmp_path_factory.mktemp("engine") / "engine.log")
        running.start()
    yield running
    running.stop()


def transfer_engine(sync: str, model_dir: Path, log_path: Path) -> VllmEngine:
    """A server for sync=nccl or ipc that asks for TOKEN and can be told to use gloo (tests/rollout/gloo_sync.py)."""

    class Options(EngineOptions):
        def command(self, port: int) -> list[str]:
            without = [word for word in super().command(port) if word != "oar.rollout.sync.ipc_worker.Extension"]
            without = [word for word in without if word != "--worker-extension-cls"]
            return [*without, "--worker-extension-cls", "tests.rollout.gloo_sync.Extension"]

    return VllmEngine(Options(model_dir, log_path, max_model_len=512, token=TOKEN, sync=sync))
