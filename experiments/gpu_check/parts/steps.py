"""Whole training steps as a run makes them, sampler against learner; and checkpoints of sharded, cast and adapted models."""

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from experiments.gpu_check.device import relative, sized, spent
from experiments.gpu_check.engine import OwnSampling, task_of
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import TINY, cast, learner_on, random_model
from experiments.gpu_check.settings import ADAPTER, step_config
from oar.common.kernels import choose_kernels
from oar.config import TrainConfig
from oar.learner.beside import Beside
from oar.learner.checkpoint import CHECKPOINTS, OPTIMIZER_FOLDER, load_state, save_checkpoint
from oar.learner.distributed import Ranks, joined
from oar.learner.optimizer_state import load_optimizer
from oar.learner.sharding import shard
from oar.learner.step import Learner
from oar.model.lora import load_trained
from oar.model.parameters import full_weights, whole
from oar.tasks.words import build_tokenizer

STEPS = 2
REASONING = sized((20, 60), (4, 7))  # tokens
BATCH = sized((4, 8), (2, 4))
MAX_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.05}  # nats; conf/sync, conf/profile/paper.yaml
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"method": "grpo"},
    "oar_g": {"method": "oar_g"},
    "oar_g, activation checkpointing": {"method": "oar_g", "learner": {"activation_checkpointing": True}},
    "oar_gn, activation checkpointing": {"method": "oar_gn", "learner": {"activation_checkpointing": True}},
    "oar_p_routes": {"method": "oar_p_routes"},
    "oar_p_budget": {"method": "oar_p_budget"},
    "LoRA": {"method": "oar_gn", "model": {"lora": ADAPTER}},
    "two updates, KL to a reference": {
        "method": "oar_g",
        "learner": {"updates_per_rollout": 2, "kl_coef": 0.1},
    },
}
RESUMED: dict[str, dict[str, Any]] = {
    "full": {"method": "oar_gn", "learner": {"lr": 1e-3}},
    "LoRA": {"method": "oar_gn", "learner": {"lr": 1e-3}, "model": {"lora": ADAPTER}},
}
EQUAL = 1e-6  # of the next step's loss in nats, of its weights in shares of the largest
Work = Callable[[Findings, TrainConfig, Ranks], None]


def run(findings: Findings) -> None:
    """Draw, grade, score, credit, update, push."""
    _in_both_dtypes(findings, RUNS, _steps, BATCH)


def resume(findings: Findings) -> None:
    """Two steps, a checkpoint and a third step; the third step again from the checkpoint."""
    _in_both_dtypes(findings, RESUMED, _resume, (2, 4))


def _in_both_dtypes(findings: Findings, runs: Mapping[str, dict[str, Any]], work: Work, batch: tuple[int, int]) -> None:
    """All of them in float32 as one process without a group, then in bfloat16 as one rank of FSDP2."""
    choose_kernels()  # as a run does
    for dtype in ("float32", "bfloat16"):
        with findings.piece(dtype), joined(step_config(batch, (4, 128), dtype=dtype).learner) as ranks:
            for name, groups in runs.items():
                groups = {**groups, "learner": {"warmup_steps": 0, **groups.get("learner", {})}}
                with findings.case(f"{dtype}, {name}"):
                    work(findings, step_config(batch, (4, 128), dtype=dtype, **groups), ranks)


def _steps(findings: Findings, cfg: TrainConfig, ranks: Ranks) -> None:
    """A copy of the learner's own model draws; the copy has the weights of version 0."""
    dtype, difference = cfg.learner.compute_dtype, 0.0
    model = random_model(TINY, spread=0.05)
    reference = copy.deepcopy(model) if cfg.learner.kl_coef > 0 else None
    engine = OwnSampling(cfg, REASONING, cast(copy.deepcopy(model), getattr(torch, dtype)))
    learner = learner_on(cfg, model, engine, ranks, Beside(cfg, reference))
    trained = {key: weight for key, weight in model.named_parameters() if weight.requires_grad}
    before = {key: whole(weight.detach()).clone() for key, weight in trained.items()}
    for _ in range(STEPS):
        with spent() as took:
            report = learner.training_step()
        difference = max(difference, report.metrics["train/sampler_logprob_diff_mean"])
    findings.note("seconds of a step", took.seconds, "s")
    findings.at_most("sampler against learner", difference, MAX_DIFFERENCE[dtype], "nats")
    findings.at_least("gradient", report.metrics["train/grad_norm"], 1e-6)
    uneven = float((report.credited.token_weights[report.graded.batch.reasoning_mask] - 1).abs().max())
    if cfg.method.name == "grpo":
        findings.at_most("weights other than 1", uneven, 0.0)
    else:
        findings.at_least("weights other than 1", uneven, 1e-3)
    moved = [bool((whole(weight.detach()) != before[key]).any()) for key, weight in trained.items()]
    findings.true("weights have moved", all(moved), "all that are trained")


def _resume(findings: Findings, cfg: TrainConfig, ranks: Ranks) -> None:
    with tempfile.TemporaryDirectory(prefix="oar-gpu-check-") as made:
        folder, start, engine = Path(made), Path(made) / "start", OwnSampling(cfg, (6, 12))
        random_model(TINY, spread=0.1).save_pretrained(start)
        build_tokenizer().save_pretrained(start)
        learner = _loaded(cfg, start, None, engine, ranks)
        learner.publish()
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
        findings.true("sealed", load_state(saved)["step"] == 2, "every file's hash, step 2")
        written = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).to(learner.model.device)  # type: ignore[arg-type]
        weights = {key: weight.clone() for key, weight in full_weights(learner.model)}
        findings.at_most("weights of save_pretrained", _distance(dict(full_weights(written)), weights), EQUAL)
        again = _loaded(cfg, start, saved, engine, ranks)
        again.step = learner.step
        losses = [one.training_step().metrics["train/loss"] for one in (learner, again)]
        # On the policy the loss is about 0, so there is no share of it to take.
        findings.at_most("loss of the next step", abs(losses[1] - losses[0]), EQUAL, "nats")
        after = dict(full_weights(learner.model))
        findings.at_most("weights after the next step", _distance(dict(full_weights(again.model)), after), EQUAL)
        findings.at_least("the step moved the weights", _distance(after, weights), 10 * EQUAL)


def _distance(ours: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor]) -> float:
    return max(relative(ours[key], reference[key]) for key in reference)


def _loaded(cfg: TrainConfig, start: Path, checkpoint: Path | None, engine: OwnSampling, ranks: Ranks) -> Learner:
    """As `oar.learner.run.make_learner` makes it, on the engine of this process."""
    model = load_trained(cfg.model.lora, start, checkpoint, "float32", cfg.seed)
    if cfg.learner.compute_dtype != "float32":
        shard(model, torch.bfloat16)
    learner = Learner(cfg, model, task_of(cfg), engine, engine, ranks)
    if checkpoint is not None:
        load_optimizer(checkpoint / OPTIMIZER_FOLDER, model, learner.optimizer)
    return learner
