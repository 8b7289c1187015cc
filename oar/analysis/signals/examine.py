"""A model's completions, graded and scored, and any token signal on them: what is measured without training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from oar.analysis.signals.recall import Truth
from oar.common.errors import DataError
from oar.common.seeding import derive_seed
from oar.config import LearnerConfig, ProbeConfig, TrainConfig, build
from oar.learner.collect import GradedBatch, grade_rollouts
from oar.learner.parity import parity_metrics
from oar.learner.probe import probe_of
from oar.method.advantages import group_advantages
from oar.method.batch import CompletionBatch
from oar.method.credit import Credit, CreditAssigner
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import make_gate
from oar.method.importance import CreditInputs, gives
from oar.method.importance.base import context_of
from oar.method.probes import Probe
from oar.model.load import load_scorer
from oar.rollout.types import Rollout
from oar.statistics.attribution import Floats
from oar.tasks.problem import Problem
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Subject:
    """N completions that have an answer and reasoning: what signals are computed on, and what is true of them."""

    inputs: CreditInputs
    truth: Truth
    places: tuple[int, ...]  # of each completion among all that were drawn
    drawn: int  # completions, those without an answer included
    look: Callable[[str], CompletionBatch]  # the completions with privileged contexts of a kind
    probe: Callable[[ProbeConfig], Probe]  # as it is once its warm-up is over
    encode_neutral: Callable[[str | None], int | None]  # `Task.encode_neutral`

    def asked(self, signal: object) -> CreditInputs:
        """The inputs with the contexts that `signal` asks for. Raises DataError where the problems do not have them."""
        context = context_of(signal)
        return self.inputs if context is None else replace(self.inputs, batch=self.look(context))

    @property
    def masks(self) -> Tensor:
        """(N, T) reasoning tokens."""
        return self.inputs.batch.reasoning_mask


def examine(
    model: PreTrainedModel,
    task: Task,
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Rollout]],
    settings: TrainConfig,
) -> Subject:
    """Grade and score the completions of each problem; the probe is the one after its warm-up.

    Raises SyncError where the sampler's logprobs are not those of `model`, DataError where the task knows no ground truth.
    """
    graded = grade_rollouts(problems, groups, task, model.device)
    batch, scores = graded.batch, score_batch(model, graded.batch, settings)
    bound = settings.sync.max_logprob_diff
    parity_metrics(batch.sampler_logprobs, scores.logprobs, batch.completion_mask, bound=bound)
    rows = (batch.has_answer & batch.reasoning_mask.any(dim=1)).nonzero()[:, 0]
    if not len(rows):
        raise DataError("A signal needs completions with an answer, but the model gave none: train it longer.")

    @cache
    def scorer(path: str | None) -> PreTrainedModel | None:
        return load_scorer(path, task.tokenizer, settings.model.dtype)

    def probe(cfg: ProbeConfig) -> Probe:
        return warm_probe(cfg, task, scorer(cfg.path))

    inputs = CreditInputs(
        model,
        batch,
        probe(settings.probe),
        scores,
        _seeds(settings.seed, range(len(batch))),
        graded.marks,
        # Methods with a sign ask which way it points: a right completion is to be drawn more often, a wrong one less.
        torch.where(graded.correct, 1.0, -1.0),
        torch.tensor([number for number, group in enumerate(groups) for _ in group], device=model.device),
        graded.rewards,
        temperature=settings.rollout.temperature,
        correct=graded.correct,
        announcement=task.encode_marker(settings.probe.conclude),
        step_end_ids=torch.tensor(task.step_end_ids(), device=model.device),
    )

    def look(context: str) -> CompletionBatch:
        return grade_rollouts(problems, groups, task, model.device, context).batch.rows(rows)

    places = tuple(rows.tolist())
    return Subject(inputs.rows(rows), _truth(graded, rows), places, len(batch), look, probe, task.encode_neutral)


def warm_probe(cfg: ProbeConfig, task: Task, scorer: PreTrainedModel | None = None) -> Probe:
    """The probe once its warm-up is over; `scorer` as in `probe_of`."""
    return probe_of(cfg, task, cfg.warmup_steps, scorer)


def completion_advantages(rewards: Tensor, cfg: LearnerConfig) -> Tensor:
    """(B,) of rewards (B,), group by group, as the learner has them."""
    return group_advantages(
        rewards, cfg.num_generations, divide_by_std=cfg.divide_by_std, leave_one_out=cfg.leave_one_out
    )


def redrawn(subject: Subject, seed: int) -> CreditInputs:
    """The inputs with the random draws of another seed; with the seed of `examine` they stay as they are."""
    return replace(subject.inputs, seeds=_seeds(seed, subject.places))


def signal_importance(subject: Subject, signal: TrainConfig) -> Tensor:
    """What a method's estimator says of every completion, (N, T), under the signal's own probe and with draws of its own seed.

    Of signed advantages their size: how much a token counts, whichever way.
    """
    estimator = build("method.estimator", signal.method.estimator, signal.allow_targets)
    asked = replace(
        subject.asked(estimator),
        seeds=redrawn(subject, signal.seed).seeds,
        probe=subject.probe(signal.probe),
        neutral_id=subject.encode_neutral(signal.counterfactual.text),
    )
    importance: Tensor = estimator(asked)
    return importance.abs() if gives(estimator) == "advantages" else importance


def as_the_gate_sees_it(subject: Subject, importance: Tensor, signal: TrainConfig) -> list[Floats]:
    """Importance (N, T) of a method's estimator as its gate gets it: (T,) for the reasoning tokens of each completion."""
    return by_completion(_credit(subject, importance, signal).token_importance, subject.masks)


def gated(subject: Subject, importance: Tensor, signal: TrainConfig) -> list[Floats]:
    """The weights that a method's gate makes of its importance (N, T): (T,) for the reasoning tokens of each completion."""
    return by_completion(_credit(subject, importance, signal).token_weights, subject.masks)


def by_completion(values: Tensor, masks: Tensor) -> list[NDArray[Any]]:
    """(N, T) as N arrays of what is under the mask; numbers in double precision."""
    values = values.double() if values.is_floating_point() else values
    return [row[mask].cpu().numpy() for row, mask in zip(values, masks, strict=True)]


def _credit(subject: Subject, importance: Tensor, signal: TrainConfig) -> Credit:
    """With an advantage of 1 everywhere, so that no completion is passed over."""
    inputs = subject.inputs
    assigner = CreditAssigner(
        lambda _: importance, make_gate(**signal.gating.options()), inputs.probe, signal.method.times_surprisal
    )
    ones = torch.ones(len(importance), device=importance.device)
    return assigner(inputs.model, inputs.batch, inputs.scores, ones, seeds=inputs.seeds, marks=inputs.marks)


@torch.no_grad()
def score_batch(model: PreTrainedModel, batch: CompletionBatch, settings: TrainConfig) -> Scores:
    """Logprobs and entropy of all completions, some rows at a time."""
    logprobs, entropy = torch.zeros_like(batch.sampler_logprobs), torch.zeros_like(batch.sampler_logprobs)
    everything = torch.arange(len(batch), device=logprobs.device)
    for rows in batch.micro_batches(everything, settings.learner.micro_batch_tokens):
        some = score_completions(model, batch.rows(rows), temperature=settings.rollout.temperature)
        logprobs[rows], entropy[rows] = some.logprobs, some.entropy
    return Scores(logprobs, entropy)


def _truth(graded: GradedBatch, rows: Tensor) -> Truth:
    if {"causal", "error"} - set(graded.marks):
        raise DataError(
            "The task must know which tokens are causal, as those of word problems and GSM8K do, but this one does "
            "not: choose benchmark=words, english or gsm8k."
        )
    masks, correct = graded.batch.reasoning_mask[rows], graded.correct[rows]
    error = graded.marks["error"][rows] & ~correct[:, None]  # of a right completion the mark means something else
    return Truth(
        problems=[graded.problems[row].id for row in rows.tolist()],
        correct=correct.cpu().numpy(),
        causal=by_completion(graded.marks["causal"][rows], masks),
        error=by_completion(error, masks),
    )


def _seeds(seed: int, places: Iterable[int]) -> list[int]:
    return [derive_seed(seed, "examine", place) for place in places]
