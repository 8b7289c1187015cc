"""The optimizer's part of a step: micro-batches in, one clipped AdamW step out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.batch import CompletionBatch
from oar.config import LearnerConfig
from oar.losses import loss_scale, policy_loss, sampler_correction
from oar.scoring import completion_logprobs


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    """What the loss of B completions needs: old_logprobs, token_advantages and ref_logprobs are (B, T)."""

    batch: CompletionBatch
    old_logprobs: Tensor
    token_advantages: Tensor
    ref_logprobs: Tensor | None

    def rows(self, index: Tensor) -> "UpdateBatch":
        """The same for some of the completions."""
        ref = None if self.ref_logprobs is None else self.ref_logprobs[index]
        return UpdateBatch(self.batch.rows(index), self.old_logprobs[index], self.token_advantages[index], ref)


def make_optimizer(model: PreTrainedModel, cfg: LearnerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters."""
    return torch.optim.AdamW(
        model.parameters(), lr=cfg.lr, betas=(cfg.adam_beta1, cfg.adam_beta2), weight_decay=cfg.weight_decay
    )


def learning_rate(cfg: LearnerConfig, update: int) -> float:
    """Linear warm-up over `warmup_steps` updates, then constant; `update` counts from 0."""
    return cfg.lr * min(1.0, (update + 1) / max(1, cfg.warmup_steps))


def accumulate_gradient(
    model: PreTrainedModel, data: UpdateBatch, cfg: LearnerConfig, *, temperature: float, max_completion_length: int
) -> dict[str, float]:
    """Add the gradient of the loss of all of `data` to the parameters' `.grad`, `micro_batch_size` rows at a time.

    Rows whose advantage is 0 have no gradient and are left out of the forward, not out of the normaliser (with a KL term
    every row has one). Returns the loss and the shares of clipped tokens and of the approximate KL.
    """
    scale = loss_scale(data.batch.completion_mask, cfg.aggregation, max_completion_length)
    contributes = data.token_advantages.abs().sum(dim=1) > 0
    if data.ref_logprobs is not None:
        contributes = torch.ones_like(contributes)
    totals = {"loss": 0.0, "clipped": 0.0, "approx_kl": 0.0}
    for index in data.batch.micro_batches(contributes.nonzero()[:, 0], cfg.micro_batch_size):
        part = data.rows(index)
        logprobs, _ = completion_logprobs(model, part.batch, temperature=temperature)
        cap = cfg.sampler_correction_cap
        loss, sums = policy_loss(
            logprobs,
            part.old_logprobs,
            part.token_advantages,
            scale[index],
            clip_eps_low=cfg.clip_eps_low,
            clip_eps_high=cfg.clip_eps_high,
            correction=None if cap is None else sampler_correction(part.old_logprobs, part.batch.sampler_logprobs, cap),
            ref_logprobs=part.ref_logprobs,
            kl_coef=cfg.kl_coef,
        )
        loss.backward()
        totals["loss"] += float(loss.detach())
        for name, value in sums.items():
            totals[name] += float(value)
    tokens = float(data.batch.completion_mask.sum())
    return {
        "train/loss": totals["loss"],
        "train/clip_fraction": totals["clipped"] / tokens,
        "train/approx_kl": totals["approx_kl"] / tokens,
    }
