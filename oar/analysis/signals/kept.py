"""Completions that a run kept of a training step, read again under any weights: what any method makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.analysis.signals.examine import score_batch
from oar.common.errors import DataError
from oar.common.seeding import derive_seed
from oar.config import MethodConfig, TrainConfig
from oar.learner.credit import Method, credit_assigner
from oar.learner.samples import Sample
from oar.method.batch import CompletionBatch, collate
from oar.method.credit import Credit
from oar.method.forward.logprobs import Scores
from oar.method.segments import Segments
from oar.model.load import load_scorer
from oar.tasks.problem import Problem
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class KeptStep:
    """N completions of a training step, as the step had them, and what `model` says of them.

    batch: with their old logprobs for the sampler's, which are not kept; scores: under `model`; scorer: the reward model of
    the run's probe, if it has one.
    """

    model: PreTrainedModel
    task: Task
    settings: TrainConfig
    step: int
    samples: Sequence[Sample]
    batch: CompletionBatch
    scores: Scores
    scorer: PreTrainedModel | None

    @classmethod
    def read(
        cls, model: PreTrainedModel, task: Task, settings: TrainConfig, step: int, samples: Sequence[Sample]
    ) -> "KeptStep":
        """`settings`: of the run. Raises DataError where the model's tokens are not the run's."""
        for sample in samples:
            if task.decode(sample.completion_ids) != sample.completion:
                raise DataError(
                    f"The model must read the run's tokens as the run did, but reads a completion of {sample.problem} as "
                    f"{task.decode(sample.completion_ids)!r}, not {sample.completion!r}: choose a model with the run's "
                    "tokenizer."
                )
        batch = collate(
            [sample.prompt_ids for sample in samples],
            [sample.completion_ids for sample in samples],
            [sample.old_logprobs for sample in samples],
            [None if sample.segments is None else Segments(*sample.segments) for sample in samples],
            [task.encode_gold(Problem(one.problem, one.prompt, one.gold, one.benchmark)) for one in samples],
            pad_id=task.pad_id,
            device=model.device,
        )
        scorer = load_scorer(settings.probe.path, task.tokenizer, settings.model.dtype)
        return cls(model, task, settings, step, samples, batch, score_batch(model, batch, settings), scorer)

    def credit(self, method: MethodConfig) -> Credit:
        """What `method` makes of them; gate, probe and random draws are those of the run.

        A completion whose advantage is 0 is taken for one of advantage 1, so that none is passed over. Raises DataError where
        the method needs what the completions lack.
        """
        settings, device = replace(self.settings, method=method), self.batch.input_ids.device
        signal = Method.built(settings).signal
        return credit_assigner(settings, self.task, signal, self.step - 1, self.scorer)(
            self.model,
            self.batch,
            self.scores,
            torch.tensor([sample.advantage or 1.0 for sample in self.samples], device=device),
            seeds=[derive_seed(settings.seed, "credit", self.step - 1, sample.row) for sample in self.samples],
            marks={name: self._mark(name) for name in shared_marks(self.samples)},
            temperature=settings.rollout.temperature,
        )

    def _mark(self, name: str) -> Tensor:
        mark = torch.zeros_like(self.batch.completion_mask)
        for row, sample in enumerate(self.samples):
            mark[row, sample.marks[name]] = True
        return mark


def shared_marks(samples: Sequence[Sample]) -> list[str]:
    """Names of the ground truth that all completions have."""
    return sorted(set.intersection(*(set(sample.marks) for sample in samples)))
