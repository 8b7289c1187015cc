"""Published sizes: Qwen2.5-1.5B in full, and Qwen2.5-7B's width; seconds and memory by stage against what `make plan` says."""

from dataclasses import replace

import torch

from experiments.gpu_check.device import FULL, GIB, Spent, sized, spent
from experiments.gpu_check.engine import OwnSampling
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import STAGES, TINY, Stages, learner_on, random_model
from experiments.gpu_check.settings import architecture, assumptions, estimator_of, step_config
from oar.config import LoraConfig, TrainConfig
from oar.learner.distributed import Ranks, joined
from oar.learner.step import StepReport
from oar.plan import Architecture, importance_work, memory_of
from oar.plan.work import Lengths, forward
from oar.tasks.data.sources import WordsSource
from oar.tasks.problem import Problem

SIZES: Architecture = architecture("qwen2_5_1_5b") if FULL else TINY
ROWS = 4  # completions of a micro-batch
TOKENS = sized(2048, 128)  # of a row, prompt included
PROMPT = 68  # tokens; the embedded task's longest
ABOVE_PLAN = 1.1  # the plan must not promise less memory than is used, but for a tenth

WIDE_SIZES: Architecture = architecture("qwen2_5_7b") if FULL else TINY
WIDE_LAYERS = sized(8, 1)  # of those that are trained in full
WIDE_PROMPT, WIDE_COMPLETION = sized((1024, 3000), (80, 40))  # tokens
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def full_size(findings: Findings) -> None:
    """Each method twice, with and without torch's deterministic mode; the first step of each warms up."""
    with joined(_full_size("grpo").learner) as ranks:
        for method in ("grpo", "oar_g", "oar_gn", "oar_p_routes"):
            for deterministic in (False, True):
                name, cfg = f"{method}{', deterministic' if deterministic else ''}", _full_size(method)
                with findings.case(name):
                    torch.use_deterministic_algorithms(deterministic, warn_only=True)
                    took, report, stages = _step(findings, name, cfg, SIZES, ranks, PROMPT, warm=True)
                    findings.at_most(f"{name}: seconds of a step", took.seconds, sized(30.0, 600.0), "s")
                    planned = _planned_seconds(cfg, report.graded.batch.completion_lengths.tolist())
                    for stage, seconds in stages.seconds.items():
                        expected = f"plan: {planned[stage]:.3g} s" if stage in planned else ""
                        findings.note(f"{name}: seconds of {stage}", seconds, "s", expected)
                    findings.at_most(
                        f"{name}: peak over the planned", took.peak / _planned_peak(cfg, SIZES, PROMPT), ABOVE_PLAN
                    )


def _full_size(method: str) -> TrainConfig:
    rollout = {"max_new_tokens": TOKENS - PROMPT, "max_model_len": 2 * TOKENS}
    return step_config(
        (2, ROWS), (ROWS, TOKENS), dtype="bfloat16", profile="single_gpu", method=method, rollout=rollout
    )


def wide(findings: Findings) -> None:
    """A step of two rows of 4,024 tokens, one at a time: of all layers with an adapter, then of 8 layers in full."""
    adapter = LoraConfig(r=sized(64, 4), alpha=sized(128, 8), targets=TARGETS)
    few = replace(WIDE_SIZES, layers=WIDE_LAYERS)
    room = assumptions("paper").memory_gib - assumptions("paper").overhead_gib
    with joined(_wide("oar_g", None).learner) as ranks:
        for method in ("oar_g", "grpo"):
            for what, lora, sizes in (("with an adapter", adapter, WIDE_SIZES), ("in full", None, few)):
                name = f"{method}, {sizes.layers} layers {what}"
                with findings.case(name):
                    took, _, _ = _step(findings, name, _wide(method, lora), sizes, ranks, WIDE_PROMPT, warm=False)
                    findings.note(f"{name}: seconds of a first step", took.seconds, "s")
                    findings.at_most(f"{name}: peak", took.peak / GIB, room, "GiB")


def _wide(method: str, lora: LoraConfig | None) -> TrainConfig:
    tokens = WIDE_PROMPT + WIDE_COMPLETION
    rollout = {"max_new_tokens": WIDE_COMPLETION, "max_model_len": 2 * tokens, "servers": 1}
    one = {"ranks": 1}
    cfg = step_config(
        (1, 2), (1, tokens), dtype="bfloat16", profile="paper", method=method, lora=lora, learner=one, rollout=rollout
    )
    cfg.data.source = {**cfg.data.source, "_target_": f"{__name__}.LongQuestions"}
    cfg.allow_targets = [__name__]
    return cfg


class LongQuestions(WordsSource):
    """Word problems whose question is repeated until the prompt is as long as it may be."""

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """As many words as leave room for `<bos>`; a number is a token for each digit."""
        found = []
        for problem in super().problems(seed, step, n):
            words = problem.question.split()
            question = " ".join((words * (WIDE_PROMPT // len(words) + 1))[: WIDE_PROMPT - 20])
            found.append(Problem(problem.id, question, problem.answer, "a long question"))
        return found


def _step(
    findings: Findings, name: str, cfg: TrainConfig, sizes: Architecture, ranks: Ranks, prompt: int, *, warm: bool
) -> tuple[Spent, StepReport, Stages]:
    """A training step on completions of the largest length, after another one where `warm`; its tokens and memory are noted."""
    reasoning = cfg.rollout.max_new_tokens - 8  # `####`, the answer and EOS come behind it
    learner = learner_on(cfg, random_model(sizes), OwnSampling(cfg, (reasoning, reasoning)), ranks)
    learner.publish()
    if warm:
        learner.training_step()
    stages = Stages(learner)
    with spent() as took:
        report = learner.training_step()
    took.peak = max(took.peak, *stages.peaks.values())
    tokens = report.graded.batch.prompt_lengths + report.graded.batch.completion_lengths
    findings.note(f"{name}: tokens of a step", int(tokens.sum()))
    findings.note(f"{name}: tokens of the longest row", int(tokens.max()))
    for stage in STAGES.values():
        findings.note(f"{name}: peak in {stage}", stages.peaks[stage] / GIB, "GiB")
    if cfg.model.lora is None:
        planned = _planned_peak(cfg, sizes, prompt) / GIB
        findings.note(f"{name}: planned peak", planned, "GiB", "without the overhead that a plan assumes")
    return took, report, stages


def _planned_peak(cfg: TrainConfig, sizes: Architecture, prompt: int) -> float:
    """Bytes of the learner at most, by the plan, without the overhead it assumes for what no allocator counts."""
    assume = assumptions(cfg.profile, longest_prompt=prompt, prompt_tokens=prompt, overhead_gib=0)
    return sum(memory_of(cfg, sizes, assume, estimator_of(cfg)).learner.values())


def _planned_seconds(cfg: TrainConfig, completions: list[int]) -> dict[str, float]:
    """Of importance and update, at the share of the peak that the plan assumes."""
    assume, checkpointing = assumptions(cfg.profile), cfg.learner.activation_checkpointing
    speed = 1e12 * assume.peak_tflops["bfloat16"] * assume.utilisation
    found = {"importance": 0.0, "update": 0.0}
    for completion in completions:
        lengths = Lengths(PROMPT, max(1, completion - 4), 1, 2)
        signal = importance_work(estimator_of(cfg), lengths, cfg.learner)
        found["importance"] += signal.flops(SIZES) / speed
        found["update"] += (3 + checkpointing) * forward(PROMPT + completion, completion).flops(SIZES) / speed
    return found
