"""Checkpoints of a model on the device: written, read, and the next step the same; sharded (DTensor), cast, with an adapter."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from experiments.gpu_check.device import FULL, relative
from experiments.gpu_check.engine import Handed, Remembering
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import ANY_LOGPROBS, random_words, task_of
from experiments.gpu_check.models import TINY, random_model
from experiments.gpu_check.settings import micro_batch, train_config
from oar.config import LoraConfig, TrainConfig
from oar.learner.checkpoint import CHECKPOINTS, OPTIMIZER_FOLDER, load_state, save_checkpoint
from oar.learner.distributed import ALONE, Ranks, joined
from oar.learner.optimizer_state import load_optimizer
from oar.learner.sharding import shard
from oar.learner.step import Learner
from oar.model.load import load_trained
from oar.model.parameters import full_weights
from oar.tasks.words import build_tokenizer

ADAPTER = LoraConfig(r=4, alpha=8, targets=["q_proj", "o_proj", "up_proj"])
RUNS: dict[str, dict[str, Any]] = {"full": {}, "LoRA": {"lora": ADAPTER}}
EQUAL = 1e-6  # of the next step's loss and weights, in shares of the largest


def run(findings: Findings) -> None:
    """Two steps, a checkpoint and a third step; the third step again from the checkpoint."""
    torch.use_deterministic_algorithms(True, warn_only=FULL)
    for name, settings in RUNS.items():
        with findings.case(f"float32, {name}"):
            _resume(findings, f"float32, {name}", _config("float32", settings), ALONE)
    with findings.case("bfloat16"), joined(_config("bfloat16", {}).learner) as ranks:
        for name, settings in RUNS.items():
            with findings.case(f"bfloat16, sharded, {name}"):
                _resume(findings, f"bfloat16, sharded, {name}", _config("bfloat16", settings), ranks)


def _config(dtype: str, settings: dict[str, Any]) -> TrainConfig:
    learner = {
        "batch_size": 8,
        "num_generations": 4,
        **micro_batch(4, 128),
        "lr": 1e-3,
        "warmup_steps": 0,
        "compute_dtype": dtype,
    }
    return train_config(method="oar_gn", learner=learner, sync=ANY_LOGPROBS, **settings)


def _resume(findings: Findings, name: str, cfg: TrainConfig, ranks: Ranks) -> None:
    folder = Path(tempfile.mkdtemp(prefix="oar-gpu-check-"))
    try:
        start = folder / "start"
        random_model(TINY, spread=0.1).save_pretrained(start)
        build_tokenizer().save_pretrained(start)
        engine = Remembering(random_words(cfg, (6, 12)))
        learner = _learner(cfg, start, None, engine, ranks)
        learner.training_step()
        learner.training_step()
        saved = save_checkpoint(
            folder / CHECKPOINTS,
            learner.step,
            learner.model,
            task_of(cfg).tokenizer,
            learner.optimizer,
            {"identity": cfg.identity()},
            keep=2,
            ranks=ranks,
        )
        findings.true(f"{name}: sealed", load_state(saved)["step"] == 2, "every file's hash, step 2")
        written = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).to(learner.model.device)  # type: ignore[arg-type]
        weights = {key: weight.clone() for key, weight in full_weights(learner.model)}
        own = dict(full_weights(written))
        error = max(relative(own[key], weights[key]) for key in weights)
        findings.at_most(f"{name}: weights of save_pretrained", error, EQUAL)
        again = _learner(cfg, start, saved, engine, ranks)
        again.step = learner.step
        losses = [one.training_step().metrics["train/loss"] for one in (learner, again)]
        findings.at_most(f"{name}: loss of the next step", abs(losses[1] - losses[0]), EQUAL * abs(losses[0]) + 1e-9)
        after, resumed = dict(full_weights(learner.model)), dict(full_weights(again.model))
        error = max(relative(resumed[key], after[key]) for key in after)
        findings.at_most(f"{name}: weights after the next step", error, EQUAL)
        moved = max(relative(after[key], weights[key]) for key in after)
        findings.at_least(f"{name}: the step moved the weights", moved, 10 * EQUAL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _learner(cfg: TrainConfig, start: Path, checkpoint: Path | None, engine: Remembering, ranks: Ranks) -> Learner:
    """As `oar.learner.run.make_learner` makes it, on the engine of this process."""
    model = load_trained(cfg.model.lora, start, checkpoint, "float32", cfg.seed)
    if cfg.learner.compute_dtype != "float32":
        shard(model, torch.bfloat16)
    learner = Learner(cfg, model, None, task_of(cfg), engine, Handed(), ranks)
    if checkpoint is not None:
        load_optimizer(checkpoint / OPTIMIZER_FOLDER, model, learner.optimizer)
    return learner
