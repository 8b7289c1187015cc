"""Bad input from the command line: one clear sentence, a non-zero exit code, nothing lost and nothing left running."""

import fcntl
import socket
from pathlib import Path

import pytest
import torch

from oar.learner.checkpoint import save_checkpoint
from oar.model.load import load_policy, load_tokenizer
from oar.rollout.sync.checkpoint import transfer_folders
from tests.conftest import start_fake_engine
from tests.system.conftest import SMALL, run

pytestmark = pytest.mark.system

NO_ENGINE = "rollout.url=http://127.0.0.1:9"


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
        (["template=qwen"], "template must be one of gsm8k_hash, plain, qwen_boxed, qwen_math, r1, but is 'qwen'"),
        (["evaluation.final_problems=null"], "words1 is generated and has no end"),
    ],
)
def test_refused_before_anything_starts(
    overrides: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no W&B account, whoever runs the tests
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
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


def test_engine_that_is_not_there(base_model: Path, tmp_path: Path) -> None:
    code, output = run("train", NO_ENGINE, f"output_dir={tmp_path / 'run'}", "tracking=disabled")
    assert code == 2
    assert "127.0.0.1:9" in error_line(output)


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
        ("old_release", "must be 0.32.*"),
        ("hang", "did not answer"),
        ("wrong_version", "99"),
        ("bad_json", "broken JSON"),
        ("http_500", "HTTP 500"),
        ("nan_logprobs", "not a finite number"),
    ],
)
def test_an_engine_that_misbehaves_ends_the_run(fault: str, said: str, base_model: Path, tmp_path: Path) -> None:
    process, url = start_fake_engine(tmp_path / "engine.log", "--fault", fault)
    with process:
        code, output = run(
            "train",
            *SMALL,
            "data.source.tiers=[words1]",
            "rollout.max_new_tokens=8",
            f"rollout.request_timeout_s={3 if fault == 'hang' else 30}",
            f"rollout.url={url}",
            f"output_dir={tmp_path / 'run'}",
            "tracking=disabled",
        )
    assert code == 2
    assert said in error_line(output)
    assert not any(folder.exists() for folder in transfer_folders(tmp_path / "run"))


def test_what_was_typed_as_allowed_reaches_the_learner(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner is a process of its own: what its folder's config.yaml allows does not count there."""
    (tmp_path / "of_mine.py").write_text("class Mine: ...\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process, url = start_fake_engine(tmp_path / "engine.log")
    own = ["method.estimator._target_=of_mine.Mine", "data.source.tiers=[words1]", "rollout.max_new_tokens=8"]
    own += [f"rollout.url={url}", f"output_dir={tmp_path / 'run'}", "tracking=disabled"]
    with process:
        code, output = run("train", *SMALL, *own)
        assert code == 2
        assert "allow_targets" in error_line(output)
        code, output = run("train", *SMALL, *own, "allow_targets=[of_mine]")
    assert code == 2
    assert "logprobs must agree" in error_line(output)  # so the learner was made, and got as far as this engine lets it


def test_two_runs_do_not_share_a_folder(base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = run("train", NO_ENGINE, f"output_dir={tmp_path / 'run'}", "tracking=disabled")
    assert code == 2
    assert "another run" in error_line(output)
