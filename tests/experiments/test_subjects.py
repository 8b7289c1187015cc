"""What a signal says of kept completions is kept by all that decides it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from experiments.shared.subjects import Plan, completions_folder, kept_importance
from oar.config.evaluation import Sampling
from tests.analysis.test_examine import RIGHT, settings, subject, task
from tests.models import tiny_model, tiny_scorer


def teach(folder: Path, seed: int) -> None:
    """Other weights of a reward model in the same folder, as `make reward-model` leaves them when it is called again."""
    tiny_scorer(seed, vocab=len(task().tokenizer)).save_pretrained(folder)
    task().tokenizer.save_pretrained(folder)


def test_a_reward_model_that_was_taught_anew_gives_other_importance(tmp_path: Path) -> None:
    scorer, kept = tmp_path / "scorer", tmp_path / "kept"
    signal = settings("method=oar_p", "probe=reward_model", f"probe.path={scorer}")
    teach(scorer, 1)
    first = kept_importance(subject(RIGHT), signal, kept)
    assert torch.equal(kept_importance(subject(RIGHT), signal, kept), first)
    teach(scorer, 2)
    assert not torch.equal(kept_importance(subject(RIGHT), signal, kept), first)


def test_another_precision_has_other_importance(tmp_path: Path) -> None:
    found, signal = subject(RIGHT), settings("method=oar_gn")
    first = kept_importance(found, signal, tmp_path)
    coarse = replace(found, inputs=replace(found.inputs, model=found.inputs.model.to(torch.bfloat16)))
    assert not torch.equal(kept_importance(coarse, signal, tmp_path), first)


def test_another_precision_draws_completions_of_its_own(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    cfg: Any = SimpleNamespace(seed=1)

    def folder(dtype: str) -> Path:
        run = settings(f"model.dtype={dtype}")
        plan = Plan(cfg, run, run, {}, [], tmp_path / "work")
        return completions_folder(plan, "base", tmp_path, task(), Sampling(2, 1.0, 8))

    assert folder("float32") == folder("float32") != folder("bfloat16")
