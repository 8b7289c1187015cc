"""Published sizes: Qwen2.5-1.5B in full, and Qwen2.5-7B's width; seconds and memory by stage against what `make plan` says."""

from dataclasses import replace
from typing import Any

from experiments.gpu_check.device import FULL, GIB, Spent, sized, spent
from experiments.gpu_check.engine import OwnSampling
from experiments.gpu_check.findings import Findings
from experiments.gpu_check.learners import STAGES, TINY, Watch, WatchedLearner, learner_on, random_model
from experiments.gpu_check.settings import architecture, assumptions, estimator_of, step_config
from oar.common.kernels import choose_kernels
from oar.config import LoraConfig, TrainConfig
from oar.learner.distributed import Ranks, joined
from oar.learner.step import StepReport
from oar.plan import Architecture, memory_of, step_costs
from oar.tasks.data.sources import WordsSource
from oar.tasks.problem import Problem

ROWS = 4  # completions of a micro-batch
TOKENS = sized(2048, 128)  # of a row, prompt included
PROMPT = 68  # tokens; the embedded task's longest
ABOVE_PLAN = 1.1  # the plan must not promise less memory than is used, but for a tenth
WIDE_LAYERS = sized(8, 1)  # of those that are trained in full
WIDE_PROMPT, WIDE_COMPLETION = sized((1024, 3000), (80, 40))  # tokens
ADAPTER = LoraConfig(
    r=sized(64, 4),
    alpha=sized(128, 8),
    targets=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)


def full_size(findings: Findings) -> None:
    """The first step of each method warms up."""
    sizes = architecture("qwen2_5_1_5b") if FULL else TINY
    rollout = {"max_new_tokens": TOKENS - PROMPT, "max_model_len": 2 * TOKENS}

    def config(method: str) -> TrainConfig:
        groups: dict[str, Any] = {"profile": "single_gpu", "method": method, "rollout": rollout}
        return step_config((2, ROWS), (ROWS, TOKENS), dtype="bfloat16", **groups)

    choose_kernels()
    with joined(config("grpo").learner) as ranks:
        for method in ("grpo", "oar_g", "oar_gn", "oar_p_routes"):
            with findings.case(method):
                _against_plan(findings, config(method), sizes, ranks)


def _against_plan(findings: Findings, cfg: TrainConfig, sizes: Architecture, ranks: Ranks) -> None:
    """In a function of its own, for a learner that is still held when the next is made would count in its peak."""
    learner = _learner(cfg, sizes, ranks)
    learner.training_step()
    took, report = _step(findings, learner, sizes, PROMPT)
    findings.at_most("seconds of a step", took.seconds, sized(30.0, 600.0), "s")
    planned = _planned_seconds(cfg, sizes, int(report.graded.batch.completion_lengths.float().mean()))
    seconds = learner.watch.seconds()
    for stage in STAGES:
        expected = f"plan: {planned[stage]:.3g} s" if stage in planned else ""
        findings.note(f"seconds of {stage}", seconds[stage], "s", expected)
    findings.at_most("peak over the planned", took.peak / _planned_peak(cfg, sizes, PROMPT), ABOVE_PLAN)


def wide(findings: Findings) -> None:
    """A step of two rows of 4,024 tokens, one at a time: of all layers with an adapter, then of 8 layers in full."""
    choose_kernels()
    sizes, tokens = architecture("qwen2_5_7b") if FULL else TINY, WIDE_PROMPT + WIDE_COMPLETION
    assume = assumptions("paper")
    rollout = {"max_new_tokens": WIDE_COMPLETION, "max_model_len": 2 * tokens, "servers": 1}
    source = {"source": {"_target_": f"{__name__}.LongQuestions"}}

    def config(method: str, lora: LoraConfig | None) -> TrainConfig:
        cfg = step_config(
            (1, 2),
            (1, tokens),
            dtype="bfloat16",
            profile="paper",
            method=method,
            model={"lora": lora},
            rollout=rollout,
            data=source,
            learner={"ranks": 1},
        )
        cfg.allow_targets = [__name__]
        return cfg

    few = replace(sizes, layers=WIDE_LAYERS)
    with joined(config("oar_g", None).learner) as ranks:
        for method in ("oar_g", "grpo"):
            for what, lora, of in (("with an adapter", ADAPTER, sizes), ("in full", None, few)):
                with findings.case(f"{method}, {of.layers} layers {what}"):
                    took, _ = _step(findings, _learner(config(method, lora), of, ranks), of, WIDE_PROMPT)
                    findings.note("seconds of a first step", took.seconds, "s")
                    findings.at_most("peak", took.peak / GIB, assume.memory_gib - assume.overhead_gib, "GiB")


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


def _learner(cfg: TrainConfig, sizes: Architecture, ranks: Ranks) -> WatchedLearner:
    """Its completions have the largest length."""
    reasoning = cfg.rollout.max_new_tokens - 8  # `####`, the answer and EOS come behind it
    return learner_on(cfg, random_model(sizes), OwnSampling(cfg, (reasoning, reasoning)), ranks)


def _step(findings: Findings, learner: WatchedLearner, sizes: Architecture, prompt: int) -> tuple[Spent, StepReport]:
    """A training step, whose tokens and memory are noted; `watch` sees this one alone."""
    learner.watch = Watch()
    with spent() as took:
        report = learner.training_step()
    peaks = learner.watch.peaks
    took.peak = max(took.peak, *peaks.values())
    tokens = report.graded.batch.prompt_lengths + report.graded.batch.completion_lengths
    findings.note("tokens of a step", int(tokens.sum()))
    findings.note("tokens of the longest row", int(tokens.max()))
    for stage in ("scoring", "update"):
        findings.note(f"peak in {stage}", peaks[stage] / GIB, "GiB")
    if learner.cfg.model.lora is None:
        planned = _planned_peak(learner.cfg, sizes, prompt) / GIB
        findings.note("planned peak", planned, "GiB", "without the overhead that a plan assumes")
    return took, report


def _planned_peak(cfg: TrainConfig, sizes: Architecture, prompt: int) -> float:
    """Bytes of the learner at most, by the plan, without the overhead it assumes for what no allocator counts."""
    assume = assumptions(cfg.profile, longest_prompt=prompt, prompt_tokens=prompt, overhead_gib=0)
    return sum(memory_of(cfg, sizes, assume, estimator_of(cfg)).learner.values())


def _planned_seconds(cfg: TrainConfig, sizes: Architecture, completion_tokens: int) -> dict[str, float]:
    """By stage; the answer and its marker are those of the embedded task."""
    lengths = {"prompt_tokens": PROMPT, "completion_tokens": completion_tokens, "marker_tokens": 1, "answer_tokens": 2}
    costs = step_costs(cfg, sizes, assumptions(cfg.profile, **lengths), estimator_of(cfg), evaluation_hours=0)
    return {"importance": costs["importance"], "update": costs["update"]}
