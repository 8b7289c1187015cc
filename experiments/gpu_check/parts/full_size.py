"""Qwen2.5-1.5B's sizes, full fine-tuning in bfloat16: seconds and memory of each stage, and what `make plan` says of them."""

import torch

from experiments.gpu_check.device import FULL, GIB, sized, spent
from experiments.gpu_check.engine import Handed
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import ANY_LOGPROBS, STAGES, Stages, learner_on, random_words
from experiments.gpu_check.models import TINY, random_model
from experiments.gpu_check.settings import architecture, assumptions, estimator_of, micro_batch, train_config
from oar.config import TrainConfig
from oar.learner.distributed import Ranks, joined
from oar.learner.step import Learner
from oar.plan import Architecture, importance_work, memory_of
from oar.plan.importance import Lengths, forward

METHODS = ("grpo", "oar_g", "oar_gn", "oar_p_routes")
SIZES: Architecture = architecture("qwen2_5_1_5b") if FULL else TINY
ROWS = 4  # completions of a micro-batch
MICRO_BATCHES = 2
TOKENS = sized(2048, 128)  # of a row, prompt included
PROMPT = 68  # tokens; the embedded task's longest
REASONING = TOKENS - PROMPT - 8  # `####`, the answer and EOS come behind it
ABOVE_PLAN = 1.1  # the plan must not promise less memory than is used, but for a tenth


def run(findings: Findings) -> None:
    """Each method twice, with and without torch's deterministic mode; the first step of each warms up."""
    with joined(_config("grpo").learner) as ranks:
        for method in METHODS:
            for deterministic in (False, True):
                name = f"{method}{', deterministic' if deterministic else ''}"
                with findings.case(name):
                    torch.use_deterministic_algorithms(deterministic, warn_only=True)
                    _measure(findings, name, _config(method), ranks)


def _config(method: str) -> TrainConfig:
    rollout = {"max_new_tokens": TOKENS - PROMPT, "max_model_len": 2 * TOKENS}
    learner = {
        "batch_size": ROWS * MICRO_BATCHES,
        "num_generations": ROWS,
        **micro_batch(ROWS, TOKENS),
        "compute_dtype": "bfloat16",
    }
    return train_config(profile="single_gpu", method=method, learner=learner, rollout=rollout, sync=ANY_LOGPROBS)


def _measure(findings: Findings, name: str, cfg: TrainConfig, ranks: Ranks) -> None:
    engine = random_words(cfg, (REASONING, REASONING))
    learner: Learner = learner_on(cfg, random_model(SIZES), engine, Handed(engine), ranks)
    learner.publish()
    learner.training_step()
    stages = Stages()
    stages.watch(learner)
    with spent() as took:
        report = learner.training_step()
    tokens = int((report.graded.batch.prompt_lengths + report.graded.batch.completion_lengths).sum())
    findings.note(f"{name}: tokens of a step", tokens)
    findings.at_most(f"{name}: seconds of a step", took.seconds, sized(30.0, 600.0), "s")
    planned = _planned_seconds(cfg, report.graded.batch.completion_lengths.tolist())
    for stage in STAGES.values():
        expected = f"plan: {planned[stage]:.3g} s" if stage in planned else ""
        findings.note(f"{name}: seconds of {stage}", stages.seconds.get(stage, 0.0), "s", expected)
        findings.note(f"{name}: peak in {stage}", stages.peaks.get(stage, 0.0) / GIB, "GiB")
    peak, planned_bytes = max([took.peak, *stages.peaks.values()]), planned_peak(cfg, SIZES)
    findings.note(f"{name}: planned peak", planned_bytes / GIB, "GiB", "without the overhead that a plan assumes")
    findings.at_most(f"{name}: peak over the planned", peak / planned_bytes, ABOVE_PLAN)


def planned_peak(cfg: TrainConfig, sizes: Architecture) -> float:
    """Bytes of the learner at most, by the plan, without the overhead it assumes for what no allocator counts."""
    assume = assumptions(cfg.profile, longest_prompt=PROMPT, prompt_tokens=PROMPT, overhead_gib=0)
    return sum(memory_of(cfg, sizes, assume, estimator_of(cfg.method.name)).learner.values())


def _planned_seconds(cfg: TrainConfig, completions: list[int]) -> dict[str, float]:
    """Of importance and update, at the share of the peak that the plan assumes."""
    assume = assumptions(cfg.profile)
    speed = 1e12 * assume.peak_tflops["bfloat16"] * assume.utilisation
    again = 1 if cfg.learner.activation_checkpointing else 0
    found = {"importance": 0.0, "update": 0.0}
    for completion in completions:
        lengths = Lengths(PROMPT, max(1, completion - 4), 1, 2)
        work = importance_work(
            estimator_of(cfg.method.name),
            lengths,
            checkpointing=cfg.learner.activation_checkpointing,
            half_precision=True,
        )
        found["importance"] += work.flops(SIZES) / speed
        found["update"] += (3 + again) * forward(PROMPT + completion, completion).flops(SIZES) / speed
    return found
