"""Checkpoints: whole or absent, exact when restored, refused when damaged."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from oar.common.errors import CheckpointError
from oar.learner.checkpoint import (
    OPTIMIZER_FOLDER,
    best_checkpoint,
    latest_checkpoint,
    load_state,
    nearest_checkpoint,
    noted,
    save_checkpoint,
)
from oar.learner.optimizer_state import load_optimizer
from oar.tasks.words import build_tokenizer
from tests.models import tiny_model


def trained(steps):
    model = tiny_model(vocab=130)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        one_step(model, optimizer, step)
    return model, optimizer


def one_step(model, optimizer, step):
    ids = torch.randint(0, 130, (2, 8), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(ids, labels=ids).loss.backward()
    optimizer.step()


def save(folder, step, model, optimizer, keep=2, accuracy=None):
    state = {"identity": "x", "accuracy": accuracy}
    return save_checkpoint(folder, step, model, build_tokenizer(), optimizer, state, keep=keep)


def test_restored_run_continues_exactly(tmp_path):
    model, optimizer = trained(3)
    checkpoint = save(tmp_path, 3, model, optimizer)
    assert load_state(checkpoint)["step"] == 3
    restored = AutoModelForCausalLM.from_pretrained(checkpoint)
    again = torch.optim.AdamW(restored.parameters(), lr=1e-3)
    load_optimizer(checkpoint / OPTIMIZER_FOLDER, restored, again)
    for step in (3, 4):
        one_step(model, optimizer, step)
        one_step(restored, again, step)
    for a, b in zip(model.parameters(), restored.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_number_of_its_state_is_known_without_its_weights(tmp_path):
    model, optimizer = trained(1)
    checkpoint = save(tmp_path, 1, model, optimizer, accuracy=0.5)
    assert (noted(checkpoint, "accuracy"), noted(checkpoint, "earned")) == (0.5, None)
    (checkpoint / "state.json").write_text("{")
    assert noted(checkpoint, "accuracy") is None


def test_keeps_the_last_ones_and_ignores_half_written(tmp_path):
    model, optimizer = trained(1)
    for step in (1, 2, 10):
        save(tmp_path, step, model, optimizer)
    (tmp_path / ".step_000011.tmp").mkdir()
    assert latest_checkpoint(tmp_path).name == "step_000010"
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_000002", "step_000010"]
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_a_copy_of_a_checkpoint_is_none_and_stays(tmp_path):
    model, optimizer = trained(1)
    shutil.copytree(save(tmp_path, 10, model, optimizer), tmp_path / "step_000010_kept")
    assert latest_checkpoint(tmp_path).name == "step_000010"
    save(tmp_path, 20, model, optimizer, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000010_kept", "step_000020"]


def test_a_step_that_is_saved_again_is_never_gone(tmp_path, monkeypatch):
    model, optimizer = trained(1)
    saved = save(tmp_path, 10, model, optimizer)
    monkeypatch.setattr(Path, "rename", None)  # whoever moves or removes it on the way fails
    monkeypatch.setattr(shutil, "rmtree", None)
    assert save(tmp_path, 10, model, optimizer) == saved
    assert load_state(saved)["step"] == 10


def test_the_best_outlives_the_last_ones(tmp_path):
    model, optimizer = trained(1)
    for step, accuracy in enumerate([20.0, 50.0, 50.0, 30.0, None, 40.0], start=1):
        save(tmp_path, step, model, optimizer, accuracy=accuracy)
        if step == 2:
            assert best_checkpoint(tmp_path).name == "step_000002"
    assert best_checkpoint(tmp_path).name == "step_000003"  # of two alike the later one
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000005", "step_000006"]
    (tmp_path / "step_000003" / "state.json").write_text(
        "{"
    )  # who resumes from it is told; who trains on is not stopped
    save(tmp_path, 7, model, optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000006", "step_000007"]


def test_the_nearest_one(tmp_path):
    assert nearest_checkpoint(tmp_path, 10) is None
    for step in (5, 10, 20):
        (tmp_path / f"step_{step:06d}").mkdir()
    for updates, nearest in ((0, 5), (7, 5), (8, 10), (10, 10), (15, 10), (16, 20), (90, 20)):
        assert nearest_checkpoint(tmp_path, updates) == tmp_path / f"step_{nearest:06d}", updates


def test_what_a_killed_run_left_half_written_is_cleared(tmp_path):
    model, optimizer = trained(1)
    (tmp_path / ".step_000009.tmp").mkdir(parents=True)
    (tmp_path / ".step_000009.tmp" / "model.safetensors").write_text("half")
    save(tmp_path, 10, model, optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000010"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "state"])
def test_damage_is_refused_in_one_sentence(tmp_path, damage):
    model, optimizer = trained(1)
    checkpoint = save(tmp_path, 1, model, optimizer)
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "truncate":
        weights.write_bytes(content[:100])
    elif damage == "remove":
        weights.unlink()
    else:
        (checkpoint / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"delete the folder .*step_000001"):
        load_state(checkpoint)


def test_no_room_leaves_what_was_there(tmp_path):
    """A limit on file size stands for a full disk: writes fail midway with an error from the operating system."""
    model, optimizer = trained(1)
    save(tmp_path, 1, model, optimizer)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code = (
        "import resource, sys; from pathlib import Path; from tests.learner.test_checkpoint import *\n"
        "model, optimizer = trained(1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "try: save(Path(sys.argv[1]), 2, model, optimizer)\n"
        "except CheckpointError as error: print(error); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "earlier checkpoints are untouched" in done.stdout
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert latest_checkpoint(tmp_path).name == "step_000001"


def test_state_lists_every_file(tmp_path):
    model, optimizer = trained(1)
    checkpoint = save(tmp_path, 1, model, optimizer)
    listed = set(json.loads((checkpoint / "state.json").read_text())["files"])
    written = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()}
    assert listed == written - {"state.json"}
    assert {name.rpartition(".")[2] for name in listed} == {"safetensors", "json"}  # nothing that would be unpickled
