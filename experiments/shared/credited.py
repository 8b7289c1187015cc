"""The credit that a method gives to completions that are there, as a training step would give it."""

import torch
from transformers import PreTrainedModel

from oar.analysis.signals.examine import completion_advantages
from oar.common.clock import Clock
from oar.config import TrainConfig, build
from oar.learner.collect import GradedBatch
from oar.learner.credit import Credited, StepCredit, credit_assigner
from oar.method.forward.logprobs import Scores
from oar.model.load import load_scorer
from oar.tasks.task import Task


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
