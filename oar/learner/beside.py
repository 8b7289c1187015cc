"""What stands beside the policy, where a method or a probe asks for it: a starting model, a teacher, reward models, values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.config import TrainConfig
from oar.learner.collect import GradedBatch
from oar.learner.credit import Method
from oar.learner.kl_by_class import AdaptedKl
from oar.learner.reward_head import LearnedGains
from oar.learner.reward_model import RewardModel
from oar.learner.teacher import TEACHER_FOLDER, follow, load_beside, save_beside
from oar.learner.value_head import LearnedValues
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import score_completions
from oar.method.importance import ImplicitReward, RewardHead, ValueHead
from oar.model.load import load_policy, load_scorer, load_tokenizer


@dataclass
class Beside:
    """reference: the frozen starting model; teacher: who has a privileged look, None for the policy itself; reward_model: one
    that is trained beside the policy; reward_head: what rewards each token, on the starting model's states; value_head: likewise
    the states, on the policy's own; scorer: the frozen one of probe=reward_model.

    Every rank holds them whole. None where nobody asks for them.
    """

    cfg: TrainConfig
    reference: PreTrainedModel | None = None
    teacher: PreTrainedModel | None = None
    reward_model: RewardModel | None = None
    reward_head: LearnedGains | None = None
    value_head: LearnedValues | None = None
    adapted_kl: AdaptedKl | None = None
    scorer: PreTrainedModel | None = None

    @classmethod
    def loaded(cls, cfg: TrainConfig, start: Path, checkpoint: Path | None) -> "Beside":
        """As at the start, or as `checkpoint` holds it; the reference is the model before training in both cases."""
        method, dtype, of_method = Method.built(cfg), cfg.learner.compute_dtype, cfg.method.teacher
        asked = cfg.learner.kl_coef > 0 or method.needs_reference or of_method.kind == "start"
        reference = load_policy(start, dtype) if asked else None
        beside = cls(cfg, reference, teacher=reference if of_method.kind == "start" else None)
        if cfg.probe.path is not None:
            beside.scorer = load_scorer(cfg.probe.path, load_tokenizer(start), dtype)
        if of_method.follows:
            beside.teacher = load_beside(start, None if checkpoint is None else checkpoint / TEACHER_FOLDER, dtype)
        if isinstance(method.learned, ValueHead):
            beside.value_head = LearnedValues(method.learned, cfg.learner, checkpoint)
        if isinstance(method.learned, RewardHead):
            assert reference is not None  # it is asked for
            sampled = cfg.rollout.temperature
            beside.reward_head = LearnedGains(method.learned, cfg.learner, sampled, reference, checkpoint)
        if isinstance(method.learned, ImplicitReward):
            assert reference is not None
            beside.reward_model = RewardModel.loaded(method.learned, cfg.learner, start, checkpoint, reference)
        if method.kl_by_class is not None:
            beside.adapted_kl = AdaptedKl(method.kl_by_class, checkpoint)
        return beside

    @property
    def kl_reference(self) -> PreTrainedModel | None:
        """The reference of the objective's KL term, where it has one."""
        return self.reference if self.cfg.learner.kl_coef > 0 else None

    def look(self, policy: PreTrainedModel, graded: GradedBatch, rewards: Tensor, clock: Clock) -> Mapping[str, Any]:
        """What `CreditInputs` has by these names: models, and what they say of a step's completions, a row each.

        rewards (B,): what the completions earned.
        """
        known: dict[str, Any] = {"teacher": self.teacher, "reference": self.reference}
        if self.reward_model is not None:
            with clock("scoring"):
                known["process_rewards"] = self.reward_model.rewards(graded.batch)
        if self.reward_head is not None:
            with clock("scoring"):
                known["process_rewards"] = self.reward_head.gains(policy, graded.batch, rewards)
        if self.value_head is not None:
            with clock("scoring"):
                known["state_values"] = self.value_head.values(policy, graded.batch, rewards)
        if self.adapted_kl is not None:
            with clock("scoring"):
                known["reference_logprobs"] = self._reference_logprobs(graded.batch)
            known["kl_coefficients"] = self.adapted_kl.coefficients(graded)
        return known

    def learn(self, graded: GradedBatch, known: Mapping[str, Any], old_logprobs: Tensor) -> dict[str, float]:
        """After the policy's update: from what `look` found, and the policy's logprobs (B, T) before it."""
        metrics: dict[str, float] = {}
        if self.reward_model is not None:
            metrics |= self.reward_model.learn(graded.batch, graded.correct)
        if self.reward_head is not None:
            metrics |= self.reward_head.learn()
        if self.value_head is not None:
            metrics |= self.value_head.learn()
        if self.adapted_kl is not None:
            metrics |= self.adapted_kl.learn(graded, old_logprobs, known["reference_logprobs"])
        return metrics

    def follow(self, policy: PreTrainedModel, step: int) -> None:
        """Bring a teacher that follows the policy up to training step `step` (from 1)."""
        if self.cfg.method.teacher.follows and self.teacher is not None:
            follow(self.teacher, policy, self.cfg.method.teacher, step)

    def save(self, checkpoint: Path) -> None:
        """Write what changes as a run goes on. Raises OSError, SafetensorError."""
        if self.cfg.method.teacher.follows and self.teacher is not None:
            save_beside(self.teacher, checkpoint / TEACHER_FOLDER)
        if self.reward_model is not None:
            self.reward_model.save(checkpoint)
        if self.reward_head is not None:
            self.reward_head.save(checkpoint)
        if self.value_head is not None:
            self.value_head.save(checkpoint)
        if self.adapted_kl is not None:
            self.adapted_kl.save(checkpoint)

    @torch.no_grad()
    def _reference_logprobs(self, batch: CompletionBatch) -> Tensor:
        assert self.reference is not None  # it is asked for
        found, everything = torch.zeros_like(batch.sampler_logprobs), torch.arange(len(batch))
        for rows in batch.micro_batches(everything.to(found.device), self.cfg.learner.micro_batch_tokens):
            scored = score_completions(self.reference, batch.rows(rows), temperature=self.cfg.rollout.temperature)
            found[rows] = scored.logprobs
        return found
