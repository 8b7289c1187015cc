"""One training step, top to bottom: generate -> grade -> advantages -> importance -> gate -> loss -> step -> sync.

Left out of GRPO on purpose: several epochs over a batch of rollouts, and (unless there is a KL term) the gradient of
groups whose rewards are all equal, since their advantage is 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.common.errors import DataError
from oar.common.seeding import derive_seed, generator
from oar.config import TrainConfig, build
from oar.learner.ahead import GroupStream
from oar.learner.collect import GradedBatch, GradedGroup, collate_groups
from oar.learner.distributed import ALONE, Ranks, share_graded
from oar.learner.gate import make_gate
from oar.learner.groups import GroupSampler
from oar.learner.parity import parity_metrics
from oar.learner.recovery import Steady, once
from oar.learner.sharding import gathered, recomputed_layers
from oar.learner.transfer import push
from oar.learner.update import LossInputs, accumulate_gradient, learning_rate, make_optimizer
from oar.method.advantages import group_advantages, overlong_penalty
from oar.method.credit import assign_credit
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import weight_metrics
from oar.method.importance.base import CreditInputs
from oar.method.probes import make_probe
from oar.model.parameters import whole
from oar.rollout.client.vllm import Engine
from oar.rollout.sync import WeightSync
from oar.tasks.problem import Problem
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did: metrics and seconds for the tracker, the batch and its credit for people to look at."""

    metrics: dict[str, float]
    seconds: dict[str, float]
    graded: GradedBatch
    data: LossInputs


class Learner:
    """The policy, its optimizer and the ways to the engine. `step` counts the updates of the policy that are done.

    With several ranks every method is called on all of them; only the first speaks to the engine.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        task: Task,
        client: Engine,
        sync: WeightSync,
        ranks: Ranks = ALONE,
    ) -> None:
        self.cfg, self.model, self.reference = cfg, model, reference
        self.task, self.client, self.sync, self.ranks = task, client, sync, ranks
        self.step = 0
        self.source = build("data.source", cfg.data.source, cfg.allow_targets).fitting(self.fits)
        self.groups = GroupStream(GroupSampler(cfg, task, client, self.source) if ranks.first else None)
        self.estimator = build("method.estimator", cfg.method.estimator, cfg.allow_targets)
        self.gate = make_gate(cfg.gating)
        self.optimizer = make_optimizer(model, cfg.learner)

    def training_step(self, steady: Steady = once) -> StepReport:
        """Run one step; afterwards the engine holds the new weights under version `step`.

        `steady` runs what needs the engine, and repeats it where the engine is lost and comes back (oar/learner/recovery.py).
        """
        cfg, clock = self.cfg.learner, Clock(self.model.device)
        self.gate = make_gate(self.cfg.gating)  # one of released_drift remembers the completions of its step
        drawn = steady(partial(self.groups.take, self.step, clock))
        with clock("grading"):
            graded = self.batch(drawn.groups)
            advantages = group_advantages(
                self.rewards(graded),
                cfg.num_generations,
                divide_by_std=cfg.divide_by_std,
                leave_one_out=cfg.leave_one_out,
            )
        data = LossInputs.of(graded.batch, advantages, graded.truncated if cfg.overlong == "mask" else None)
        look = partial(self.look, graded, data, clock)
        # With one update the weights that score are the weights that are updated: one forward scores, credits and learns.
        one_forward = cfg.updates_per_rollout == 1
        with self.groups.drawing_next(self.step, clock):
            with clock("scoring"):
                idle = ~data.contributing(self.reference)  # the update runs no forward for these
                self.score(data, look, idle if one_forward else torch.ones_like(idle))
            with clock("update"):
                update = self.update(data, look if one_forward else None, graded.weight_version)
        self.step += 1
        with clock("sync"):
            steady(self.publish)
        metrics = batch_metrics(graded, data, cfg.num_generations) | drawn.metrics | update
        return StepReport(metrics, clock.seconds(), graded, data)

    def fits(self, problem: Problem) -> bool:
        """Whether its prompt leaves room for a whole completion: the engine refuses one that does not."""
        rollout = self.cfg.rollout
        return len(self.task.encode_prompt(problem)) <= rollout.max_model_len - rollout.max_new_tokens

    def batch(self, groups: Sequence[GradedGroup]) -> GradedBatch:
        """What was drawn, of which only the first rank has any, as tensors on all ranks."""
        device = self.model.device
        graded = collate_groups(groups, self.task, device) if self.ranks.first else None
        return share_graded(graded, self.ranks, device)

    def rewards(self, graded: GradedBatch) -> Tensor:
        """(B,): 1 for a right answer (for the control `reward=random` the toss of a coin), less what its length costs."""
        rewards = graded.rewards
        if self.cfg.method.reward == "random":
            coins = torch.rand(len(rewards), generator=generator(self.cfg.seed, "reward", self.step))
            rewards = (coins < 0.5).to(rewards)
        if self.cfg.learner.overlong == "soft_penalty":
            longest, buffer = self.cfg.rollout.max_new_tokens, self.cfg.learner.overlong_buffer
            rewards = rewards + overlong_penalty(graded.batch.completion_lengths, longest, buffer)
        return rewards

    def look(self, graded: GradedBatch, data: LossInputs, clock: Clock, rows: Tensor, scores: Scores) -> None:
        """Take from the forward of some completions what the loss needs of them: old logprobs, and each token's credit."""
        with clock("importance"):
            inputs = CreditInputs(
                self.model,
                graded.batch.rows(rows),
                make_probe(
                    self.cfg.probe.name,
                    self.task.encode_marker(self.cfg.probe.conclude),
                    step=self.step,
                    warmup_steps=self.cfg.probe.warmup_steps,
                ),
                scores,
                [derive_seed(self.cfg.seed, "credit", self.step, row) for row in rows.tolist()],
                {name: mark[rows] for name, mark in graded.marks.items()},
            )
            credit = assign_credit(
                inputs,
                data.advantages[rows],
                self.estimator,
                self.gate,
                times_surprisal=self.cfg.method.times_surprisal,
            )
        data.old_logprobs[rows], data.entropy[rows] = scores.logprobs.detach(), scores.entropy
        data.token_importance[rows], data.token_weights[rows] = credit.token_importance, credit.token_weights
        data.token_advantages[rows], data.known[rows] = credit.token_advantages, True

    @torch.no_grad()
    def score(self, data: LossInputs, look: Callable[[Tensor, Scores], None], which: Tensor) -> None:
        """Look at the completions `which` (B,) marks with forwards that leave no graph."""
        micro_batches = data.batch.micro_batches(which.nonzero()[:, 0], self.cfg.learner.micro_batch_tokens)
        with gathered(self.model), recomputed_layers(self.model, self.cfg.learner.activation_checkpointing):
            for rows in micro_batches[self.ranks.rank :: self.ranks.count]:
                scores = score_completions(self.model, data.batch.rows(rows), temperature=self.cfg.rollout.temperature)
                look(rows, scores)

    def update(self, data: LossInputs, look: Callable[[Tensor, Scores], None] | None, version: int) -> dict[str, float]:
        """`updates_per_rollout` optimizer steps on completions of weights `version`, each on its share of whole groups.

        Raises DataError on a gradient that is not finite, SyncError where sampler and learner disagree.
        """
        cfg, reports = self.cfg.learner, []
        if look is None:
            data.merge(self.ranks)  # all completions were looked at beforehand
        for part, index in enumerate(torch.arange(len(data.batch)).chunk(cfg.updates_per_rollout)):
            lr = learning_rate(cfg, self.step * cfg.updates_per_rollout + part)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.zero_grad(set_to_none=True)
            with gathered(self.model):
                report = accumulate_gradient(
                    self.model,
                    self.reference,
                    data,
                    index.to(self.model.device),
                    cfg,
                    temperature=self.cfg.rollout.temperature,
                    max_completion_length=self.cfg.rollout.max_new_tokens,
                    look=look,
                    ranks=self.ranks,
                )
            if look is not None:
                data.merge(self.ranks)
            # Every completion has been scored by now, and no weight has moved.
            parity = self.parity(data, version)
            norm = float(whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.max_grad_norm)))
            if not torch.isfinite(torch.tensor(norm)):
                raise DataError(f"The gradient of step {self.step} is {norm}: lower learner.lr or look at the rewards.")
            self.optimizer.step()
            reports.append(report | parity | {"train/grad_norm": norm, "train/lr": lr})
        return {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}

    def parity(self, data: LossInputs, version: int) -> dict[str, float]:
        """How far sampler and learner are apart. Raises SyncError where it is too far for one and the same weights.

        Weights of an older version differ by what was learned since, for which there is no bound.
        """
        bound = self.cfg.sync.max_logprob_diff if version == self.step else math.inf
        return parity_metrics(data.batch.sampler_logprobs, data.old_logprobs, data.batch.completion_mask, bound=bound)

    def publish(self) -> None:
        """Give the engine the weights, under version `step`."""
        push(self.sync, self.model, self.step, self.ranks)


def batch_metrics(graded: GradedBatch, data: LossInputs, num_generations: int) -> dict[str, float]:
    """Diagnostics of the rollouts and of their credit (docs/METHOD.md §8)."""
    batch, mask = graded.batch, graded.batch.completion_mask
    credited = batch.has_answer & (data.advantages != 0)
    weights = weight_metrics(data.token_weights[credited], batch.reasoning_mask[credited])
    metrics = {
        "train/reward_mean": float(graded.rewards.mean()),
        "train/zero_advantage_groups": float(
            (data.advantages.view(-1, num_generations) == 0).all(dim=1).float().mean()
        ),
        "train/entropy": float(data.entropy[mask].mean()),
        "train/completion_length": float(mask.sum(dim=1).float().mean()),
        "train/truncated_share": float(graded.truncated.double().mean()),
        "probe/fallback_share": float((~batch.has_answer).float().mean()),
    }
    how = {f"grading/{outcome}_share": share for outcome, share in graded.outcomes.items()}
    return metrics | how | {f"weights/{name}": value for name, value in weights.items()}
