"""A language model that is trained beside the policy to tell right completions, and rewards tokens by what it learned (PRIME)."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import LearnerConfig
from oar.learner.distributed import ALONE
from oar.learner.optimizer_state import load_optimizer, save_optimizer
from oar.learner.teacher import load_beside, save_beside
from oar.learner.update import make_optimizer
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import score_completions
from oar.method.importance import ImplicitReward

REWARD_MODEL_FOLDER = "reward_model"  # of a checkpoint
_OPTIMIZER = "reward_model_optimizer"


class RewardModel:
    """Its log ratio to the starting model is the reward of a token. One rank holds it whole, in float32."""

    def __init__(
        self, how: ImplicitReward, cfg: LearnerConfig, model: PreTrainedModel, reference: PreTrainedModel
    ) -> None:
        self.how, self.cfg, self.model, self.reference = how, cfg, model, reference
        self.optimizer = make_optimizer(model, cfg)
        for group in self.optimizer.param_groups:
            group["lr"] = how.relative_lr * cfg.lr

    @classmethod
    def loaded(
        cls, how: ImplicitReward, cfg: LearnerConfig, start: Path, checkpoint: Path | None, reference: PreTrainedModel
    ) -> "RewardModel":
        """At the start a copy of the starting model, else what the checkpoint holds."""
        folder = None if checkpoint is None else checkpoint / REWARD_MODEL_FOLDER
        found = cls(how, cfg, load_beside(start, folder, "float32"), reference)
        if checkpoint is not None:
            load_optimizer(checkpoint / _OPTIMIZER, found.model, found.optimizer)
        return found

    def save(self, checkpoint: Path) -> None:
        """Weights and optimizer. Raises OSError, SafetensorError."""
        save_beside(self.model, checkpoint / REWARD_MODEL_FOLDER)
        save_optimizer(checkpoint / _OPTIMIZER, self.model, self.optimizer, ALONE)

    @torch.no_grad()
    def rewards(self, batch: CompletionBatch) -> Tensor:
        """q (B, T) in nats, 0 outside the completions."""
        found = torch.zeros(batch.completion_mask.shape, device=batch.input_ids.device)
        for rows in self._micro_batches(batch):
            found[rows] = self._log_ratio(batch.rows(rows))
        return found

    def learn(self, batch: CompletionBatch, correct: Tensor) -> dict[str, float]:
        """One step of its optimizer on the completions and what the verifier says of them, (B,). Returns metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        total, agreed = torch.zeros(2, device=batch.input_ids.device)
        for rows in self._micro_batches(batch):
            ratio = self._log_ratio(batch.rows(rows))
            loss = self.how.loss(ratio, correct[rows]).sum() / len(batch)
            loss.backward()
            total += loss.detach()
            agreed += ((ratio.detach().sum(dim=1) > 0) == correct[rows]).float().sum() / len(batch)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.how.max_grad_norm)
        self.optimizer.step()
        return {"reward_model/loss": float(total), "reward_model/accuracy": float(agreed)}

    def _micro_batches(self, batch: CompletionBatch) -> tuple[Tensor, ...]:
        everything = torch.arange(len(batch), device=batch.input_ids.device)
        return batch.micro_batches(everything, self.cfg.micro_batch_tokens)

    def _log_ratio(self, batch: CompletionBatch) -> Tensor:
        own = score_completions(self.model, batch, temperature=1.0).logprobs
        with torch.no_grad():
            reference = score_completions(self.reference, batch, temperature=1.0).logprobs
        return own - reference
