"""Bad input from the command line: one clear sentence, exit code 2, nothing lost and nothing left running."""

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oar.common.errors import OarError
from oar.learner.checkpoint import save_checkpoint
from oar.model.load import load_policy, load_tokenizer
from oar.rollout.sync.checkpoint import transfer_folders
from tests.conftest import start_fake_engine
from tests.programs import ROOT, run
from tests.system.conftest import SMALL, learn

pytestmark = pytest.mark.system

NO_ENGINE = "rollout.url=http://127.0.0.1:9"
SHORT = ("data.source.tiers=[words1]", "rollout.max_new_tokens=8")  # what a fake engine can hold


def error_line(output: str) -> str:
    """The one line that says what is wrong; fails where there is a traceback instead."""
    assert "Traceback" not in output, output
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["gating.tau=1.5"], "gating.tau must be between 0 and 1, but is 1.5"),
        (["learner.num_generations=7"], "multiple of learner.num_generations (7), but is 128"),
        (["model.path=nowhere", "model.teach=null"], "nowhere"),
        (["tracking.mode=online"], "API key"),
        (["+method.estimator.depth=3"], "depth"),
        (
            ["template=qwen"],
            "template must be one of gsm8k_hash, plain, question_answer, qwen_boxed, qwen_math, r1, but is 'qwen'",
        ),
        (["evaluation.final_problems=null"], "has no end: set evaluation.final_problems"),
        (["benchmark=math500", "model.path=nowhere"], "model.path must be a folder"),  # the hub is not asked first
        (["benchmark=math500", "data=local", "data.source.path=none.jsonl"], "none.jsonl cannot be read"),
        (["benchmark=math500", "template=qwen"], "template must be one of"),
        (["benchmark=math500", "reward=own"], "reward.own._target_ must name a function or a class"),
    ],
)
def test_refused_before_anything_starts(
    overrides: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no W&B account, whoever runs the tests
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = tmp_path / "run"
    code, output = run("train", *overrides, NO_ENGINE, f"output_dir={folder}")
    assert code == 2
    assert said in error_line(output)
    assert not (folder / "metrics.jsonl").exists()


def test_port_in_use(base_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = run("train", f"rollout.port={port}", f"output_dir={tmp_path / 'run'}")
    assert code == 2
    assert f"port {port}" in error_line(output)
    assert "rollout.port" in error_line(output)


def test_the_exit_code_of_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.train", "gating.tau=1.5", f"output_dir={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gating.tau" in error_line(done.stderr)


def test_engine_that_is_not_there(base_model: Path, tmp_path: Path) -> None:
    code, output = run("train", NO_ENGINE, f"output_dir={tmp_path / 'run'}", "tracking=disabled")
    assert code == 2
    assert "rollout.url must be the address of a running vLLM server, but http://127.0.0.1:9" in error_line(output)


def test_corrupt_checkpoint(base_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = load_policy(base_model, "float32")
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint = save_checkpoint(
        folder / "checkpoints", 10, model, load_tokenizer(base_model), optimizer, {"identity": "x"}, keep=2
    )
    (checkpoint / "model.safetensors").write_bytes(b"not what was written")
    code, output = run("train", NO_ENGINE, "resume=auto", f"output_dir={folder}", "tracking=disabled")
    assert code == 2
    assert "model.safetensors" in error_line(output)
    assert "step_000010" in error_line(output)
    assert (checkpoint / "model.safetensors").read_bytes() == b"not what was written"


def test_checkpoint_of_other_settings(base_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    model = load_policy(base_model, "float32")
    optimizer = torch.optim.AdamW(model.parameters())
    save_checkpoint(folder / "checkpoints", 10, model, load_tokenizer(base_model), optimizer, {"identity": "x"}, keep=2)
    (folder / "config.yaml").write_text("what the run was made with")
    code, output = run("train", NO_ENGINE, "resume=auto", f"output_dir={folder}", "tracking=disabled")
    assert code == 2
    assert "other settings" in error_line(output)
    assert (folder / "config.yaml").read_text() == "what the run was made with"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ok", "logprobs must agree"),  # it answers, but not with the learner's weights
        ("old_release", r"must be 0\.32\.\*"),
        ("hang", "did not answer"),
        ("wrong_version", "99"),
        ("bad_json", "broken JSON"),
        ("http_500", "HTTP 500"),
        ("nan_logprobs", "not a finite number"),
    ],
)
def test_an_engine_that_misbehaves_ends_the_learner(fault: str, said: str, base_model: Path, tmp_path: Path) -> None:
    process, url = start_fake_engine(tmp_path / "engine.log", "--fault", fault)
    patience = f"rollout.request_timeout_s={3 if fault == 'hang' else 30}"
    with process, pytest.raises(OarError, match=said):
        learn(tmp_path / "run", base_model, url, *SHORT, patience)
    assert not any(folder.exists() for folder in transfer_folders(tmp_path / "run"))


def test_what_was_typed_as_allowed_reaches_the_learner(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner is a process of its own: what its folder's config.yaml allows does not count there. It is the supervisor that
    ends with what the learner says of an engine that is not what it seems."""
    (tmp_path / "of_mine.py").write_text("class Mine: ...\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    process, url = start_fake_engine(tmp_path / "engine.log")
    own = ["method.estimator._target_=of_mine.Mine", f"rollout.url={url}", f"output_dir={tmp_path / 'run'}"]
    with process:
        code, output = run("train", *SMALL, *SHORT, *own, "tracking=disabled")
        assert code == 2
        assert "allow_targets" in error_line(output)
        code, output = run("train", *SMALL, *SHORT, *own, "tracking=disabled", "allow_targets=[of_mine]")
    assert code == 2
    assert "logprobs must agree" in error_line(output)  # so the learner was made, and got as far as this engine lets it
    assert not any(folder.exists() for folder in transfer_folders(tmp_path / "run"))


def test_two_runs_do_not_share_a_folder(base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = run("train", NO_ENGINE, f"output_dir={tmp_path / 'run'}", "tracking=disabled")
    assert code == 2
    assert "another run" in error_line(output)
