"""The credit that methods give to completions that are there, as a training step would give it."""

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from oar.analysis.signals.examine import completion_advantages
from oar.common.clock import Clock
from oar.config import TrainConfig, build
from oar.config.composed import composed_run
from oar.learner.collect import GradedBatch
from oar.learner.credit import Credited, StepCredit, credit_assigner
from oar.method.forward.logprobs import Scores
from oar.model.load import load_scorer
from oar.tasks.task import Task


def planned_arms(arms: Mapping[str, Sequence[str]], overrides: Sequence[str]) -> dict[str, TrainConfig]:
    """conf/train of every arm, by name its own overrides behind the common ones, validated. Raises ConfigError."""
    found = {}
    for name, own in arms.items():
        found[name] = composed_run([*overrides, *own])
        build("method.estimator", found[name].method.estimator, found[name].allow_targets)
    return found


def credited(
    settings: TrainConfig, model: PreTrainedModel, task: Task, graded: GradedBatch, scores: Scores
) -> Credited:
    """As a training step of the arm would credit the tokens once the probe's warm-up is over."""
    estimator = build("method.estimator", settings.method.estimator, settings.allow_targets)
    scorer, step = load_scorer(settings.probe.path, task.tokenizer, settings.model.dtype), settings.probe.warmup_steps
    step_credit = StepCredit(
        credit_assigner(settings, task, estimator, step, scorer),
        None,
        model,
        graded,
        graded.rewards,
        completion_advantages(graded.rewards, settings.learner),
        settings,
        step,
        Clock(model.device),
        {
            "announcement": task.encode_marker(settings.probe.conclude),
            "step_end_ids": torch.tensor(task.step_end_ids(), device=model.device),
        },
    )
    return step_credit(torch.arange(len(graded.batch), device=model.device), scores)
