"""The credit of one training step: the configuration's method, called with each forward that the step runs anyway."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.common.seeding import derive_seed
from oar.config import TrainConfig
from oar.learner.collect import GradedBatch
from oar.learner.distributed import Ranks
from oar.method.credit import Credit, CreditAssigner
from oar.method.forward.logprobs import Scores
from oar.method.gating import make_gate
from oar.method.importance import CreditSignal
from oar.method.probes import make_probe
from oar.tasks.task import Task


def credit_assigner(cfg: TrainConfig, task: Task, signal: CreditSignal, step: int) -> CreditAssigner:
    """The method of a configuration in training step `step` (from 0), on which the probe's warm-up depends."""
    conclude = task.encode_marker(cfg.probe.conclude)
    return CreditAssigner(
        signal,
        make_gate(**cfg.gating.options()),
        make_probe(cfg.probe.name, conclude, step=step, warmup_steps=cfg.probe.warmup_steps),
        cfg.method.times_surprisal,
        cfg.method.preserve_mass,
        cfg.method.control,
    )


@dataclass(frozen=True, slots=True)
class Credited:
    """What the loss needs of R completions beside a forward, and what is reported of them.

    rows (R,): their places in the batch; old_logprobs, entropy, token_importance, token_weights, token_advantages: (R, T).
    """

    rows: Tensor
    old_logprobs: Tensor
    entropy: Tensor
    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor

    @classmethod
    def of(cls, rows: Tensor, scores: Scores, credit: Credit) -> "Credited":
        """Of the completions `rows`, what their forward and the method say of them."""
        weights = credit.token_importance, credit.token_weights, credit.token_advantages
        return cls(rows, scores.logprobs.detach(), scores.entropy, *weights)

    def lookup(self, rows: Tensor, _: Scores) -> "Credited":
        """Of some completions, where all of the batch are here in its order; what their newest forward says changes nothing."""
        return Credited(rows, *(values[rows] for values in self._values()))

    @staticmethod
    def joined(parts: Sequence["Credited"], shape: torch.Size, ranks: Ranks, device: torch.device) -> "Credited":
        """All B completions (shape: (B, T)) in the batch's order; every one must be in a part of exactly one rank."""
        values = [torch.zeros(shape, device=device) for _ in range(5)]
        for part in parts:
            for whole, some in zip(values, part._values(), strict=True):
                whole[part.rows] = some
        return Credited(torch.arange(shape[0], device=device), *(ranks.total(whole) for whole in values))

    def _values(self) -> tuple[Tensor, ...]:
        return self.old_logprobs, self.entropy, self.token_importance, self.token_weights, self.token_advantages


def given_credit(old_logprobs: Tensor, token_advantages: Tensor) -> Credited:
    """Token advantages (B, T) from elsewhere, for a loss without a method: nothing is known of importance and weights."""
    rows = torch.arange(len(token_advantages), device=token_advantages.device)
    nothing = torch.zeros_like(token_advantages)
    return Credited(rows, old_logprobs, nothing, nothing, nothing, token_advantages)


@dataclass(frozen=True, slots=True)
class StepCredit:
    """Gives the completions `rows` of a graded batch their credit, once there is a forward of them."""

    assigner: CreditAssigner
    model: PreTrainedModel
    graded: GradedBatch
    advantages: Tensor  # (B,)
    seeds: tuple[int, int]  # of the run, and the step
    clock: Clock

    def __call__(self, rows: Tensor, scores: Scores) -> Credited:
        """`scores`: those of the completions `rows` (R,), with a graph or without."""
        seed, step = self.seeds
        with self.clock("importance"):
            credit = self.assigner(
                self.model,
                self.graded.batch.rows(rows),
                scores,
                self.advantages[rows],
                seeds=[derive_seed(seed, "credit", step, row) for row in rows.tolist()],
                marks={name: mark[rows] for name, mark in self.graded.marks.items()},
            )
        return Credited.of(rows, scores, credit)
