"""The optimizer's part of a step: micro-batches in, the gradient of the batch's loss out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import LearnerConfig
from oar.learner.distributed import ALONE, Ranks
from oar.learner.sharding import recomputed_layers
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.losses import loss_scale, policy_loss, sampler_correction


@dataclass(slots=True)
class LossInputs:
    """What the loss of B completions needs besides a forward. The learner fills the rows in as it comes to know them.

    loss_mask (B, T): the tokens of the completions that are in the loss; old_logprobs, entropy, token_importance,
    token_weights, token_advantages: (B, T); advantages: (B,); known (B,): which rows this rank has filled in, where there are
    several.
    """

    batch: CompletionBatch
    advantages: Tensor
    loss_mask: Tensor
    old_logprobs: Tensor
    entropy: Tensor
    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor
    known: Tensor

    @classmethod
    def of(cls, batch: CompletionBatch, advantages: Tensor, left_out: Tensor | None = None) -> "LossInputs":
        """Nothing known but the advantages: every token weighs 1. `left_out` (B,): completions that are not in the loss."""
        loss_mask = batch.completion_mask if left_out is None else batch.completion_mask & ~left_out[:, None]
        empty = torch.zeros(batch.completion_mask.shape, device=advantages.device)
        weights = torch.ones_like(empty)
        known = torch.zeros_like(advantages, dtype=torch.bool)
        token_advantages = advantages[:, None] * weights
        return cls(batch, advantages, loss_mask, empty, empty.clone(), empty.clone(), weights, token_advantages, known)

    def contributing(self, reference: PreTrainedModel | None) -> Tensor:
        """(B,) whether a completion has a gradient: one in the loss has, where its advantage or a KL term gives it one."""
        return self.loss_mask.any(dim=1) & ((self.advantages != 0) | (reference is not None))

    def merge(self, ranks: Ranks) -> None:
        """Bring together what each rank has filled in; every row must be known to exactly one of them."""
        if ranks.count == 1:
            return
        for values in (
            self.old_logprobs,
            self.entropy,
            self.token_importance,
            self.token_weights,
            self.token_advantages,
        ):
            ranks.total(values.masked_fill_(~self.known[:, None], 0))
        self.known.fill_(True)


def make_optimizer(model: PreTrainedModel, cfg: LearnerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters that are trained."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=cfg.lr, betas=(cfg.adam_beta1, cfg.adam_beta2), weight_decay=cfg.weight_decay)


def learning_rate(cfg: LearnerConfig, update: int) -> float:
    """Linear warm-up over `warmup_steps` updates, then constant; `update` counts from 0."""
    return cfg.lr * min(1.0, (update + 1) / max(1, cfg.warmup_steps))


def accumulate_gradient(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    data: LossInputs,
    index: Tensor,
    cfg: LearnerConfig,
    *,
    temperature: float,
    max_completion_length: int,
    look: Callable[[Tensor, Scores], None] | None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Add the gradient of the loss of completions `index` to the parameters' `.grad`, `micro_batch_tokens` at a time.

    Each rank takes every `ranks.count`-th micro-batch, so that these are the same however many ranks there are. The loss is a sum
    whose normaliser counts the whole batch, which every rank holds.

    `look(rows, scores)`, where given, is called with each micro-batch's forward before its loss and fills these rows of
    `data` in: on the policy one forward serves credit and loss. Rows whose advantage is 0 have no gradient and are left
    out of the forward, not out of the normaliser (with a reference, that is a KL term, every row has one); those outside
    `data.loss_mask` are left out of both.
    Returns the loss and the shares of clipped tokens and of the approximate KL.
    """
    mask = data.loss_mask[index]
    scale = torch.zeros_like(data.old_logprobs)
    scale[index] = loss_scale(mask, cfg.aggregation, max_completion_length)
    totals = torch.zeros(3, dtype=torch.float64, device=scale.device)  # read at the end: each read waits for a GPU
    micro_batches = data.batch.micro_batches(index[data.contributing(reference)[index]], cfg.micro_batch_tokens)
    own = micro_batches[ranks.rank :: ranks.count]
    for rows in own:
        batch, cap = data.batch.rows(rows), cfg.sampler_correction_cap
        with recomputed_layers(model, cfg.activation_checkpointing):
            scores = score_completions(model, batch, temperature=temperature)
            if look is not None:
                look(rows, scores)  # a credit signal may have a graph of its own
        logprobs = scores.logprobs
        del scores  # the forward was kept for `look` alone: not over the backward pass and the next forward
        ref_logprobs = None
        if reference is not None:
            with torch.no_grad():
                ref_logprobs = score_completions(reference, batch, temperature=temperature).logprobs
        old_logprobs = data.old_logprobs[rows]
        loss, sums = policy_loss(
            logprobs,
            old_logprobs,
            data.token_advantages[rows],
            scale[rows],
            clip_eps_low=cfg.clip_eps_low,
            clip_eps_high=cfg.clip_eps_high,
            ratio_level=cfg.ratio_level,
            correction=None if cap is None else sampler_correction(old_logprobs, batch.sampler_logprobs, cap),
            ref_logprobs=ref_logprobs,
            kl_coef=cfg.kl_coef,
        )
        loss.backward()
        totals += torch.stack([loss.detach(), sums["clipped"], sums["approx_kl"]])
    if len(own) < len(micro_batches[:: ranks.count]):
        # Another rank has one micro-batch more, and each backward pass sums the gradients of all: this rank adds zeros.
        spare = score_completions(
            model, data.batch.rows(micro_batches[-1][-1:]), temperature=temperature
        )  # a short one
        (0.0 * spare.logprobs.sum()).backward()
    loss, clipped, approx_kl = ranks.total(totals.cpu()).tolist()
    tokens = max(1.0, float(mask.sum()))
    return {"train/loss": loss, "train/clip_fraction": clipped / tokens, "train/approx_kl": approx_kl / tokens}
