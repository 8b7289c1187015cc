"""Nobody gets in without the token, nothing from a folder or a checkpoint is run, and no secret is written down.

What needs the real server is in tests/system/test_real_engine.py, and what a run writes in tests/system/test_runs.py.
"""

import ast
import asyncio
import hashlib
import json
import os
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from oar.common.errors import CheckpointError, ConfigError, DataError, OarError
from oar.common.provenance import ROOT
from oar.config import TrainConfig, validated
from oar.launch.supervisor import engine_options
from oar.learner.checkpoint import OPTIMIZER_FOLDER, load_state
from oar.learner.optimizer_state import load_optimizer
from oar.model.load import load_policy, load_tokenizer
from oar.rollout.access import TOKEN_VARIABLE, engine_token
from oar.rollout.server.engine import EngineOptions, VllmEngine
from oar.rollout.server.guard import Guard
from tests.config.test_config import composed
from tests.conftest import SECRETS, TOKEN


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """Exists once a trap has been sprung."""
    return tmp_path / "sprung"


@pytest.fixture
def model_copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def start(model: Path, tmp_path: Path) -> None:
    VllmEngine(EngineOptions(model, tmp_path / "engine.log")).start()


# Nothing is run that came in a folder


def test_the_trap_works(sprung: Path) -> None:
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()


@pytest.mark.parametrize("load", [lambda model, _: load_policy(model, "float32"), start])
def test_pickled_weights_are_refused_unread(load: Any, model_copy: Path, tmp_path: Path, sprung: Path) -> None:
    (model_copy / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Trap(sprung)}, model_copy / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"must hold its weights as model\*.safetensors, but holds .*pytorch_model.bin"):
        load(model_copy, tmp_path)
    assert not sprung.exists()
    assert not (tmp_path / "engine.log").exists()


def test_safetensors_go_before_a_pickle_beside_them(model_copy: Path, sprung: Path) -> None:
    torch.save({"lm_head.weight": Trap(sprung)}, model_copy / "pytorch_model.bin")
    load_policy(model_copy, "float32")
    assert not sprung.exists()


@pytest.mark.parametrize(
    "load", [lambda model, _: load_policy(model, "float32"), lambda model, _: load_tokenizer(model), start]
)
def test_a_models_own_code_is_not_run_and_nobody_is_asked(
    load: Any, model_copy: Path, tmp_path: Path, sprung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "no")
    (model_copy / "own.py").write_text(f"import os\nos.mkdir({str(sprung)!r})\nclass Own: ...\n")
    auto = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    for file in ("config.json", "tokenizer_config.json"):
        config = json.loads((model_copy / file).read_text())
        config |= {"model_type": "own", "tokenizer_class": "Own", "auto_map": auto}
        (model_copy / file).write_text(json.dumps(config))
    with pytest.raises(OarError, match="custom code") as caught:
        load(model_copy, tmp_path)
    assert "\n" not in str(caught.value)
    assert asked == []
    assert not sprung.exists()
    assert not (tmp_path / "engine.log").exists()


def test_a_checkpoint_is_not_unpickled_even_with_the_right_hash(model_copy: Path, sprung: Path) -> None:
    (trap,) = (model_copy / OPTIMIZER_FOLDER).iterdir()
    torch.save({"state": Trap(sprung)}, trap)
    state = json.loads((model_copy / "state.json").read_text())
    state["files"][f"{OPTIMIZER_FOLDER}/{trap.name}"] = hashlib.sha256(trap.read_bytes()).hexdigest()
    (model_copy / "state.json").write_text(json.dumps(state))
    load_state(model_copy)
    model = load_policy(model_copy, "float32")
    with pytest.raises(CheckpointError, match="not in safetensors"):
        load_optimizer(trap.parent, model, torch.optim.AdamW(model.parameters()))
    assert not sprung.exists()


UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def test_no_code_here_unpickles_or_trusts() -> None:
    """By reading: no module that unpickles, no torch.load, no allow_pickle, no object over a collective, no foreign code."""
    found = []
    for file in [*(ROOT / "oar").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=names) if any(name.name.split(".")[0] in UNPICKLING for name in names):
                    found.append((file, node.lineno))
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLING:
                    found.append((file, node.lineno))
                case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                    found.append((file, node.lineno))
                case ast.Attribute(
                    attr="read_pickle" | "all_gather_object" | "broadcast_object_list" | "gather_object"
                ):
                    found.append((file, node.lineno))
                case ast.keyword(arg="trust_remote_code" | "allow_pickle", value=ast.Constant(value=value)) if value:
                    found.append((file, node.value.lineno))
                case ast.Constant(value="--trust-remote-code"):
                    found.append((file, node.lineno))
    assert found == []


# Nobody gets in without the token


def answer(headers: dict[str, str], kind: str = "http") -> Any:
    """What the guard answers to a request: an HTTP status, or the type of the message to a websocket."""
    sent: list[Any] = []

    async def inside(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(Guard(inside)({"type": kind, "path": "/collective_rpc", "headers": encoded}, receive, send))
    return sent[0].get("status", sent[0]["type"])


def test_the_guard_asks_for_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert answer({"Authorization": f"Bearer {TOKEN}"}) == 200
    assert answer({}) == 401
    assert answer({"Authorization": f"Bearer {TOKEN}x"}) == 401
    assert answer({"Authorization": TOKEN}) == 401
    assert answer({"Authorization": f"Bearer {TOKEN}", "Origin": "https://example.org"}) == 403
    assert answer({}, kind="websocket") == "websocket.close"


def test_the_guard_keeps_web_pages_out_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert answer({}) == 200
    assert answer({"Origin": "null"}) == 403


def test_the_token_comes_from_the_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert engine_token(None) is None
    monkeypatch.setenv(TOKEN_VARIABLE, "from-the-environment")
    assert engine_token(None) == "from-the-environment"
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert engine_token(str(file)) == TOKEN


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (TOKEN, 0o640, "chmod 600"),
        ("short", 0o600, "16 or more"),
        ("", 0o600, "16 or more"),
        ("two words of a token", 0o600, "without spaces"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_token_file_that_is_none_is_refused(content: str | None, mode: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=said) as caught:
        engine_token(str(file))
    assert not content or content not in str(caught.value)


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match=r"rollout.url must be without") as caught:
        validated(composed("rollout.url=http://user:5ec4e7@127.0.0.1:8000"), TrainConfig)
    assert "5ec4e7" not in str(caught.value)


# No secret is written down


def test_the_engine_is_given_its_own_token_only_and_shows_it_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, secret in {**SECRETS, "AWS_SECRET_ACCESS_KEY": "x", "db_password": "x"}.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    cfg = validated(composed(f"rollout.token_file={file}"), TrainConfig)
    options = engine_options(cfg.rollout, cfg.model, tmp_path, tmp_path)
    environment = options.environment(TOKEN)
    assert environment[TOKEN_VARIABLE] == TOKEN
    assert {environment[name] for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password")} == {
        None
    }
    assert "TOKENIZERS_PARALLELISM" not in environment
    assert environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "0"
    for shown in (repr(options), " ".join(options.command(80)), json.dumps(asdict(cfg))):
        assert TOKEN not in shown
        assert not any(secret in shown for secret in SECRETS.values())


def test_a_changed_token_does_not_change_what_a_run_is() -> None:
    one, other = (validated(composed(*more), TrainConfig) for more in ((), ("rollout.token_file=/somewhere",)))
    assert one.identity() == other.identity()
