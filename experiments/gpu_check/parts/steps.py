"""Whole training steps as a run makes them: draw, grade, score, credit, update, push, and sampler against learner."""

from dataclasses import dataclass
from typing import Any

import torch

from experiments.gpu_check.device import DEVICE, FULL, sized, spent
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import ANY_LOGPROBS, learner_that_samples
from experiments.gpu_check.models import TINY, random_model
from experiments.gpu_check.settings import micro_batch, train_config
from oar.config import LoraConfig
from oar.learner.distributed import ALONE, Ranks, joined
from oar.model.parameters import whole

STEPS = 2
SIZES = sized(TINY, TINY)
REASONING = sized((20, 60), (4, 7))  # tokens
GROUPS, GENERATIONS = sized((4, 8), (2, 4))
MAX_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.05}  # nats; conf/sync, conf/profile/paper.yaml
ADAPTER = LoraConfig(r=4, alpha=8, targets=["q_proj", "o_proj", "up_proj"])


@dataclass(frozen=True)
class Run:
    """Steps to make, beside the embedded profile's settings."""

    name: str
    settings: dict[str, Any]


RUNS = (
    Run("grpo", {"method": "grpo"}),
    Run("oar_g", {"method": "oar_g"}),
    Run("oar_g, activation checkpointing", {"method": "oar_g", "learner": {"activation_checkpointing": True}}),
    Run("oar_gn, activation checkpointing", {"method": "oar_gn", "learner": {"activation_checkpointing": True}}),
    Run("oar_p_routes", {"method": "oar_p_routes"}),
    Run("oar_p_budget", {"method": "oar_p_budget"}),
    Run("LoRA", {"method": "oar_gn", "lora": ADAPTER}),
    Run("two updates, KL to a reference", {"method": "oar_g", "learner": {"updates_per_rollout": 2, "kl_coef": 0.1}}),
)


def run(findings: Findings) -> None:
    """All of them in float32 as one process without a group, then in bfloat16 as one rank of FSDP2."""
    # As a run has it (oar/learner/run.py): what has no deterministic form on a GPU warns.
    torch.use_deterministic_algorithms(True, warn_only=FULL)
    for one in RUNS:
        with findings.case(f"float32, {one.name}"):
            _steps(findings, one, "float32", ALONE)
    with findings.case("bfloat16"), joined(_config(RUNS[0], "bfloat16").learner) as ranks:
        for one in RUNS:
            with findings.case(f"bfloat16, {one.name}"):
                _steps(findings, one, "bfloat16", ranks)


def _config(one: Run, dtype: str) -> Any:
    learner = {
        "batch_size": GROUPS * GENERATIONS,
        "num_generations": GENERATIONS,
        **micro_batch(4, 128),
        "warmup_steps": 0,
        "compute_dtype": dtype,
        **one.settings.get("learner", {}),
    }
    return train_config(**{**one.settings, "sync": ANY_LOGPROBS, "learner": learner})


def _steps(findings: Findings, one: Run, dtype: str, ranks: Ranks) -> None:
    cfg = _config(one, dtype)
    cfg.model.dtype = dtype
    model = random_model(SIZES, spread=0.05, device=DEVICE)
    learner = learner_that_samples(cfg, model, REASONING, ranks)
    before = {name: whole(weight.detach()).clone() for name, weight in model.named_parameters() if weight.requires_grad}
    name, difference = f"{dtype}, {one.name}", 0.0
    for _ in range(STEPS):
        with spent() as took:
            report = learner.training_step()
        difference = max(difference, report.metrics["train/sampler_logprob_diff_mean"])
    findings.note(f"{name}: seconds of a step", took.seconds, "s")
    findings.at_most(f"{name}: sampler against learner", difference, MAX_DIFFERENCE[dtype], "nats")
    findings.at_least(f"{name}: gradient", report.metrics["train/grad_norm"], 1e-6)
    credited = report.credited.token_weights[report.graded.batch.reasoning_mask]
    uneven = float((credited - 1).abs().max())
    if cfg.method.name == "grpo":
        findings.at_most(f"{name}: weights other than 1", uneven, 0.0)
    else:
        findings.at_least(f"{name}: weights other than 1", uneven, 1e-3)
    moved = [
        bool((whole(weight.detach()) != before[key]).any()) for key, weight in model.named_parameters() if key in before
    ]
    findings.true(f"{name}: weights have moved", all(moved), "all that are trained")
