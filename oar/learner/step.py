"""One training step, top to bottom: generate -> grade -> advantages -> importance -> gate -> loss -> step -> sync.

Left out of GRPO on purpose: several epochs over a batch of rollouts, and (unless there is a KL term) the gradient of
groups whose rewards are all equal, since their advantage is 0.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.advantages import group_advantages
from oar.config import TrainConfig, build
from oar.credit import assign_credit
from oar.errors import DataError
from oar.gating import weight_metrics
from oar.importance.base import CreditInputs
from oar.learner.collect import GradedBatch, grade_rollouts
from oar.learner.distributed import ALONE, Ranks, share_graded
from oar.learner.gate import make_gate
from oar.learner.parity import parity_metrics
from oar.learner.sharding import gathered
from oar.learner.update import LossInputs, accumulate_gradient, contributes, learning_rate, make_optimizer
from oar.probes import make_probe
from oar.rollout.client import EngineClient
from oar.rollout.sync import CheckpointSync
from oar.rollout.types import Rollout, Sampling
from oar.scoring import Scores, score_completions
from oar.seeding import derive_seed, generator
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.weights import take_part, whole


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
        client: EngineClient,
        sync: CheckpointSync,
        ranks: Ranks = ALONE,
    ) -> None:
        self.cfg, self.model, self.reference = cfg, model, reference
        self.task, self.client, self.sync, self.ranks = task, client, sync, ranks
        self.step = 0
        self.source = build("data.source", cfg.data.source)
        self.estimator = build("method.estimator", cfg.method.estimator)
        self.gate = make_gate(cfg.gating)
        self.optimizer = make_optimizer(model, cfg.learner)

    def training_step(self) -> StepReport:
        """Run one step; afterwards the engine holds the new weights under version `step`."""
        cfg, clock = self.cfg.learner, Clock()
        with clock("generation"):
            problems = self.source.problems(self.cfg.seed, self.step, cfg.batch_size // cfg.num_generations)
            groups = self.generate(problems)
        with clock("grading"):
            graded = self.grade(problems, groups)
            advantages = group_advantages(
                self.rewards(graded),
                cfg.num_generations,
                divide_by_std=cfg.divide_by_std,
                leave_one_out=cfg.leave_one_out,
            )
        data = LossInputs.of(graded.batch, advantages)
        look = partial(self.look, graded, data, clock)
        # With one update the weights that sampled are the weights that are updated: one forward scores, credits and learns.
        on_policy = cfg.updates_per_rollout == 1
        with clock("scoring"):
            idle = ~contributes(advantages, self.reference)  # the update runs no forward for these
            self.score(data, look, idle if on_policy else torch.ones_like(idle))
        with clock("update"):
            update = self.update(data, look if on_policy else None)
        self.step += 1
        with clock("sync"):
            self.publish()
        return StepReport(batch_metrics(graded, data) | update, clock.seconds(), graded, data)

    def generate(self, problems: Sequence[Problem]) -> list[list[Rollout]]:
        """Completions of each problem, drawn by the engine with the weights of this step; none on other ranks than the first."""
        if not self.ranks.first:
            return []
        rollout = self.cfg.rollout
        return self.client.generate(
            [self.task.encode_prompt(problem) for problem in problems],
            self.task.ending(Sampling(self.cfg.learner.num_generations, rollout.temperature, rollout.max_new_tokens)),
            seed=derive_seed(self.cfg.seed, "sampling", self.step),
            expected_version=self.step,
        )

    def grade(self, problems: Sequence[Problem], groups: Sequence[Sequence[Rollout]]) -> GradedBatch:
        """What `generate` gave, graded by the first rank and shared with all."""
        device = self.model.device
        graded = grade_rollouts(problems, groups, self.task, device) if self.ranks.first else None
        return share_graded(graded, self.ranks, device)

    def rewards(self, graded: GradedBatch) -> Tensor:
        """(B,): 1 for a right answer; for the control `reward=random` the toss of a coin."""
        if self.cfg.method.reward == "answer":
            return graded.rewards
        coins = torch.rand(len(graded.rewards), generator=generator(self.cfg.seed, "reward", self.step))
        return (coins < 0.5).to(graded.rewards)

    def look(self, graded: GradedBatch, data: LossInputs, clock: "Clock", rows: Tensor, scores: Scores) -> None:
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
                torch.tensor([derive_seed(self.cfg.seed, "credit", self.step, row) for row in rows.tolist()]),
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
        micro_batches = data.batch.micro_batches(which.nonzero()[:, 0], self.cfg.learner.micro_batch_size)
        with gathered(self.model):
            for rows in micro_batches[self.ranks.rank :: self.ranks.count]:
                scores = score_completions(self.model, data.batch.rows(rows), temperature=self.cfg.rollout.temperature)
                look(rows, scores)

    def update(self, data: LossInputs, look: Callable[[Tensor, Scores], None] | None) -> dict[str, float]:
        """`updates_per_rollout` optimizer steps, each on its share of whole groups.

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
            parity = self.parity(data)
            norm = float(whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.max_grad_norm)))
            if not torch.isfinite(torch.tensor(norm)):
                raise DataError(f"The gradient of step {self.step} is {norm}: lower learner.lr or look at the rewards.")
            self.optimizer.step()
            reports.append(report | parity | {"train/grad_norm": norm, "train/lr": lr})
        return {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}

    def parity(self, data: LossInputs) -> dict[str, float]:
        """How far sampler and learner are apart. Raises SyncError where it is too far."""
        bound = self.cfg.sync.max_logprob_diff
        return parity_metrics(data.batch.sampler_logprobs, data.old_logprobs, data.batch.completion_mask, bound=bound)

    def publish(self) -> None:
        """Give the engine the weights, under version `step`."""
        if self.ranks.first:
            self.sync.push(self.model, self.step)
        else:
            take_part(self.model)
        self.ranks.wait()


class Clock:
    """Seconds per stage of a step; a stage inside another is not counted twice."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        self._open.append(stage)
        yield
        self._open.pop()
        seconds = time.perf_counter() - started
        self._stages[stage] = self._stages.get(stage, 0.0) + seconds
        if self._open:
            self._stages[self._open[-1]] = self._stages.get(self._open[-1], 0.0) - seconds

    def seconds(self) -> dict[str, float]:
        """Every stage, and the total since the clock was made."""
        return self._stages | {"total": time.perf_counter() - self._started}


def batch_metrics(graded: GradedBatch, data: LossInputs) -> dict[str, float]:
    """Diagnostics of the rollouts and of their credit (docs/METHOD.md §8)."""
    batch, mask = graded.batch, graded.batch.completion_mask
    credited = batch.has_answer & (data.advantages != 0)
    weights = weight_metrics(data.token_weights[credited], batch.reasoning_mask[credited])
    metrics = {
        "train/reward_mean": float(graded.rewards.mean()),
        # With rewards 0 and 1 a group's advantages are all 0 or none is, so this is the share of groups as well.
        "train/zero_advantage_groups": float((data.advantages == 0).float().mean()),
        "train/entropy": float(data.entropy[mask].mean()),
        "train/completion_length": float(mask.sum(dim=1).float().mean()),
        "train/truncated_share": graded.truncated_share,
        "probe/fallback_share": float((~batch.has_answer).float().mean()),
    }
    how = {f"grading/{outcome}_share": share for outcome, share in graded.outcomes.items()}
    return metrics | how | {f"weights/{name}": value for name, value in weights.items()}
