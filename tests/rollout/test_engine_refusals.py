"""What can be seen before vLLM starts is refused in one sentence, and what cannot is explained by its log."""

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from experiments import doctor
from oar.common.errors import ConfigError, DataError, EngineError
from oar.rollout.server.engine import EngineOptions, VllmEngine, telling_lines


def test_a_port_in_use_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = EngineOptions(tiny_model_dir, tmp_path / "log", port=port)
        with pytest.raises(ConfigError, match=rf"port {port} .* is not free .*rollout.port"):
            VllmEngine(options).start()
    assert not (tmp_path / "log").exists()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.path must be .*nowhere has no config.json"):
        VllmEngine(EngineOptions(tmp_path / "nowhere", tmp_path / "log")).start()


def test_weights_that_are_cut_off_are_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(tiny_model_dir, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model.safetensors cannot be read \(.*download it again"):
        VllmEngine(EngineOptions(folder, tmp_path / "log")).start()


def test_a_context_that_is_too_short_is_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    options = EngineOptions(tiny_model_dir, tmp_path / "log", max_model_len=1_000_000)
    with pytest.raises(ConfigError, match=r"rollout.max_model_len must be at most \d+, the context of the model in"):
        VllmEngine(options).start()
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("release", ["0.24.0", "0.31.2", "0.320.0", "1.0.0"])
def test_another_vllm_is_refused(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """The package is asked for by its metadata, which comes first on the path here."""
    metadata = tmp_path / f"vllm-{release}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"vLLM .* must be 0\.32\.\*.* but is {release}") as caught:
        VllmEngine(EngineOptions(tiny_model_dir, tmp_path / "log")).start()
    told = {check.name: check for check in doctor.checks(False, nullcontext())}["vllm"]
    assert (told.found, told.mend) == (release, str(caught.value))


def test_a_tied_model_is_refused_on_cpu(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = tmp_path / "tied"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ConfigError, match=r"model.path.* ties its embeddings"):
        VllmEngine(EngineOptions(folder, tmp_path / "log")).start()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org"])
def test_only_loopback_will_do_without_a_token(tiny_model_dir: Path, tmp_path: Path, host: str) -> None:
    with pytest.raises(
        ConfigError, match=f"rollout.host must be a loopback address, but is '{host}'.*OAR_ENGINE_TOKEN"
    ):
        VllmEngine(EngineOptions(tiny_model_dir, tmp_path / "log", host=host)).start()


def test_stop_before_start_is_harmless(tiny_model_dir: Path, tmp_path: Path) -> None:
    engine = VllmEngine(EngineOptions(tiny_model_dir, tmp_path / "log"))
    engine.stop()
    assert engine.poll() is None


@pytest.mark.engine
@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_dies_while_starting_is_explained(tiny_model_dir: Path, tmp_path: Path) -> None:
    """How far another kind of rotary positions stretches the context, only vLLM knows."""
    folder = tmp_path / "stretched"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "linear", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    options = EngineOptions(folder, tmp_path / "log", max_model_len=100_000)
    with pytest.raises(EngineError, match=r"ended with exit code 1 while starting.*max_model_len \(100000\)"):
        VllmEngine(options).start()


@pytest.mark.engine
@pytest.mark.usefixtures("nothing_left")
def test_a_server_that_takes_too_long_is_ended(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"not healthy after 2 s \(rollout.startup_timeout_s\)"):
        VllmEngine(EngineOptions(tiny_model_dir, tmp_path / "log", startup_timeout_s=2.0)).start()


def test_telling_lines_prefers_errors() -> None:
    log = "see `OSError: [Errno 24]`\n(EngineCore pid=7) ERROR [core.py:3] ValueError: too long\n  by 3\nb\nc\n"
    assert telling_lines(log) == "ValueError: too long by 3"
    assert telling_lines("a\n\nb\nc\nd\n") == "b | c | d"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test this process has no guardian that it did not have before."""
    before = guardians()
    yield
    assert guardians() <= before


def guardians() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "guardian.py" in " ".join(child.cmdline())}
