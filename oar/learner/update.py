"""The optimizer's part of a step: micro-batches in, the gradient of the batch's loss out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.config import LearnerConfig
from oar.learner.credit import Credited
from oar.learner.distributed import ALONE, Ranks
from oar.learner.sharding import recomputed_layers
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.losses import Surrogate, loss_scale, policy_loss, sampler_correction


@dataclass(frozen=True, slots=True)
class LossBatch:
    """B completions, their advantages (B,), and which of their tokens are in the loss (B, T).

    all_contribute: a completion of advantage 0 has a gradient too, where a method gives token advantages or losses of its own.
    """

    batch: CompletionBatch
    advantages: Tensor
    loss_mask: Tensor
    all_contribute: bool = False

    @classmethod
    def of(
        cls, batch: CompletionBatch, advantages: Tensor, left_out: Tensor | None = None, *, all_contribute: bool = False
    ) -> "LossBatch":
        """`left_out` (B,): completions that are not in the loss."""
        loss_mask = batch.completion_mask if left_out is None else batch.completion_mask & ~left_out[:, None]
        return cls(batch, advantages, loss_mask, all_contribute)

    def contributing(self, reference: PreTrainedModel | None) -> Tensor:
        """(B,) whether a completion has a gradient: one in the loss has, where advantages or a KL term give it one."""
        return self.loss_mask.any(dim=1) & ((self.advantages != 0) | self.all_contribute | (reference is not None))


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
    data: LossBatch,
    index: Tensor,
    cfg: LearnerConfig,
    *,
    temperature: float,
    max_completion_length: int,
    credit: Callable[[Tensor, Scores], Credited],
    surrogate: Surrogate | None = None,
    auxiliary: Callable[[Tensor, Scores, Tensor], Tensor | None] = lambda *_: None,
    ranks: Ranks = ALONE,
) -> tuple[dict[str, float], list[Credited]]:
    """Add the gradient of the loss of completions `index` to the parameters' `.grad`, `micro_batch_tokens` at a time.

    Each rank takes every `ranks.count`-th micro-batch, so that these are the same however many ranks there are. The loss is a sum
    whose normaliser counts the whole batch, which every rank holds.

    `credit(rows, scores)` says what the loss needs of a micro-batch, given the update's own forward of it: on the policy one
    forward serves credit and loss (`StepCredit`); else it is looked up (`Credited.lookup`). Completions whose advantage is 0 have
    no gradient and are left out of the forward, not out of the normaliser (with a reference, that is a KL term, every one has);
    those outside `data.loss_mask` are left out of both. `auxiliary(rows, scores, old_logprobs)` is a loss per token that is
    added, or None.
    Returns the loss, the share of clipped tokens, and the approximate KL to the sampling weights, a mean over the tokens of
    completions that a forward was run for; and the credit of this rank's micro-batches.
    """
    mask = data.loss_mask[index]
    scale = torch.zeros(data.loss_mask.shape, device=index.device)
    scale[index] = loss_scale(mask, cfg.aggregation, max_completion_length)
    totals = torch.zeros(3, dtype=torch.float64, device=scale.device)  # read at the end: each read waits for a GPU
    contributing = index[data.contributing(reference)[index]]
    micro_batches = data.batch.micro_batches(contributing, cfg.micro_batch_tokens)
    own, credited = micro_batches[ranks.rank :: ranks.count], []
    for rows in own:
        batch, cap = data.batch.rows(rows), cfg.sampler_correction_cap
        with recomputed_layers(model, cfg.activation_checkpointing):
            scores = score_completions(model, batch, temperature=temperature)
            given = credit(rows, scores)  # a credit signal may have a graph of its own
            beside = auxiliary(rows, scores, given.old_logprobs)
        logprobs = scores.logprobs
        del scores  # the forward was needed for the credit alone: not over the backward pass and the next forward
        ref_logprobs = None
        if reference is not None:
            with torch.no_grad():
                ref_logprobs = score_completions(reference, batch, temperature=temperature).logprobs
        loss, sums = policy_loss(
            logprobs,
            given.old_logprobs,
            given.token_advantages,
            scale[rows],
            clip_eps_low=cfg.clip_eps_low,
            clip_eps_high=cfg.clip_eps_high,
            ratio_level=cfg.ratio_level,
            surrogate=surrogate,
            auxiliary=beside,
            correction=None if cap is None else sampler_correction(given.old_logprobs, batch.sampler_logprobs, cap),
            ref_logprobs=ref_logprobs,
            kl_coef=cfg.kl_coef,
        )
        loss.backward()
        totals += torch.stack([loss.detach(), sums["clipped"], sums["approx_kl"]])
        credited.append(given)
    if len(own) < len(micro_batches[:: ranks.count]):
        # Another rank has one micro-batch more, and each backward pass sums the gradients of all: this rank adds zeros.
        short = data.batch.rows(micro_batches[-1][-1:])
        (0.0 * score_completions(model, short, temperature=temperature).logprobs.sum()).backward()
    loss, clipped, approx_kl = ranks.total(totals.cpu()).tolist()
    tokens, compared = torch.stack([mask.sum(), data.loss_mask[contributing].sum()]).clamp(min=1).tolist()  # one wait
    metrics = {"train/loss": loss, "train/clip_fraction": clipped / tokens, "train/approx_kl": approx_kl / compared}
    return metrics, credited
