"""Qwen2.5-7B's width: OAR-G over one row of 4,024 tokens, of all layers with an adapter, then of 8 layers in full."""

from dataclasses import replace

from experiments.gpu_check.device import FULL, GIB, sized, spent
from experiments.gpu_check.engine import Handed
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import ANY_LOGPROBS, STAGES, Stages, learner_on, random_words
from experiments.gpu_check.models import TINY, random_model
from experiments.gpu_check.settings import architecture, assumptions, estimator_of, micro_batch, train_config
from oar.config import LoraConfig, TrainConfig
from oar.learner.distributed import Ranks, joined
from oar.plan import Architecture, memory_of
from oar.tasks.data.sources import WordsSource
from oar.tasks.problem import Problem

SIZES: Architecture = architecture("qwen2_5_7b") if FULL else TINY
LAYERS = sized(8, 1)  # of those that are trained in full
PROMPT, COMPLETION = sized((1024, 3000), (80, 40))  # tokens
PROFILE = "paper"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LongQuestions(WordsSource):
    """Word problems whose question is said again until the prompt is as long as it may be."""

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """As many words as leave room for `<bos>`."""
        return [_longer(problem) for problem in super().problems(seed, step, n)]


def _longer(problem: Problem) -> Problem:
    words = problem.question.split()
    repeated = (words * (PROMPT // len(words) + 1))[: PROMPT - 20]  # a number is a token for each digit
    return Problem(problem.id, " ".join(repeated), problem.answer, "a long question")


def run(findings: Findings) -> None:
    """Peak memory of a step of two rows, one at a time, and seconds by stage."""
    adapter = LoraConfig(r=sized(64, 4), alpha=sized(128, 8), targets=TARGETS)
    few = replace(SIZES, layers=LAYERS)
    with joined(_config("oar_g", None).learner) as ranks:
        for method in ("oar_g", "grpo"):
            with findings.case(f"{method}, {SIZES.layers} layers with an adapter"):
                _measure(
                    findings, f"{method}, {SIZES.layers} layers with an adapter", _config(method, adapter), SIZES, ranks
                )
            with findings.case(f"{method}, {LAYERS} layers in full"):
                _measure(findings, f"{method}, {LAYERS} layers in full", _config(method, None), few, ranks)


def _config(method: str, lora: LoraConfig | None) -> TrainConfig:
    learner = {"batch_size": 2, "num_generations": 2, "ranks": 1, **micro_batch(1, PROMPT + COMPLETION)}
    rollout = {"max_new_tokens": COMPLETION, "max_model_len": 2 * (PROMPT + COMPLETION), "servers": 1}
    return train_config(profile=PROFILE, method=method, lora=lora, learner=learner, rollout=rollout, sync=ANY_LOGPROBS)


def _measure(findings: Findings, name: str, cfg: TrainConfig, sizes: Architecture, ranks: Ranks) -> None:
    cfg.data.source = {**cfg.data.source, "_target_": f"{__name__}.LongQuestions"}
    cfg.allow_targets = [__name__]
    reasoning = COMPLETION - 8
    engine = random_words(cfg, (reasoning, reasoning))
    learner = learner_on(cfg, random_model(sizes), engine, Handed(engine), ranks)
    learner.publish()
    stages = Stages()
    stages.watch(learner)
    with spent() as took:
        report = learner.training_step()
    longest = int((report.graded.batch.prompt_lengths + report.graded.batch.completion_lengths).max())
    findings.note(f"{name}: tokens of the longest row", longest)
    findings.note(f"{name}: seconds of a first step", took.seconds, "s")
    for stage in STAGES.values():
        findings.note(f"{name}: peak in {stage}", stages.peaks.get(stage, 0.0) / GIB, "GiB")
    peak = max([took.peak, *stages.peaks.values()]) / GIB
    assume = assumptions(PROFILE, longest_prompt=PROMPT, prompt_tokens=PROMPT)
    if cfg.model.lora is None:
        planned = memory_of(cfg, sizes, replace(assume, overhead_gib=0), estimator_of(cfg.method.name))
        findings.note(f"{name}: planned peak", sum(planned.learner.values()) / GIB, "GiB")
    findings.at_most(f"{name}: peak", peak, assume.memory_gib - assume.overhead_gib, "GiB")
