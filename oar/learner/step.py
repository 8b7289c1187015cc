"""One training step, top to bottom: generate -> grade -> advantages -> importance -> gate -> loss -> step -> sync.

Left out of GRPO on purpose: several epochs over a batch of rollouts, and (unless there is a KL term) the forward of
groups whose rewards are all equal, since their advantage is 0.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.advantages import group_advantages
from oar.config import TrainConfig, build
from oar.credit import Credit, assign_credit
from oar.errors import DataError
from oar.gating import bilevel_weights
from oar.importance.base import CreditInputs
from oar.learner.collect import GradedBatch, grade_rollouts
from oar.learner.parity import parity_metrics
from oar.learner.update import UpdateBatch, accumulate_gradient, learning_rate, make_optimizer
from oar.probes import make_probe
from oar.rollout.client import EngineClient
from oar.rollout.sync import CheckpointSync
from oar.rollout.types import Rollout, Sampling
from oar.scoring import completion_logprobs
from oar.seeding import derive_seed, generator
from oar.tasks.problem import Problem
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did: metrics and seconds for the tracker, the batch and its credit for people to look at."""

    metrics: dict[str, float]
    seconds: dict[str, float]
    graded: GradedBatch
    credit: Credit


class Learner:
    """The policy, its optimizer and the ways to the engine. `step` counts the updates of the policy that are done."""

    def __init__(
        self,
        cfg: TrainConfig,
        model: PreTrainedModel,
        reference: PreTrainedModel | None,
        task: Task,
        client: EngineClient,
        sync: CheckpointSync,
    ) -> None:
        self.cfg, self.model, self.reference = cfg, model, reference
        self.task, self.client, self.sync = task, client, sync
        self.step = 0
        self.source = build("data.source", cfg.data.source)
        self.estimator = build("method.estimator", cfg.method.estimator)
        gating = cfg.gating
        self.gate = partial(
            bilevel_weights,
            tau=gating.tau,
            beta=gating.beta,
            floor=gating.floor,
            threshold=gating.threshold,
            suppress=gating.suppress,
            boost=gating.boost,
        )
        self.optimizer = make_optimizer(model, cfg.learner)

    def training_step(self) -> StepReport:
        """Run one step; afterwards the engine holds the new weights under version `step`."""
        cfg, clock = self.cfg.learner, Clock()
        with clock("generation"):
            problems = self.source.problems(self.cfg.seed, self.step, cfg.batch_size // cfg.num_generations)
            groups = self.generate(problems)
        with clock("grading"):
            graded = grade_rollouts(problems, groups, self.task, self.model.device)
            batch = graded.batch
            advantages = group_advantages(
                graded.rewards, cfg.num_generations, divide_by_std=cfg.divide_by_std, leave_one_out=cfg.leave_one_out
            )
        with clock("scoring"):
            old_logprobs, entropy = self.score(self.model, graded)
            ref_logprobs = None if self.reference is None else self.score(self.reference, graded)[0]
            parity = parity_metrics(
                batch.sampler_logprobs, old_logprobs, batch.completion_mask, bound=self.cfg.sync.max_logprob_diff
            )
        with clock("importance"):
            credit = self.assign_credit(graded, advantages, entropy)
        with clock("update"):
            update = self.update(UpdateBatch(batch, old_logprobs, credit.token_advantages, ref_logprobs))
        self.step += 1
        with clock("sync"):
            self.sync.push(self.model, self.step)
        metrics = batch_metrics(graded, advantages, entropy) | parity | credit.metrics | update
        return StepReport(metrics, clock.seconds(), graded, credit)

    def generate(self, problems: Sequence[Problem]) -> list[list[Rollout]]:
        """Completions of each problem, drawn by the engine with the weights of this step."""
        rollout = self.cfg.rollout
        return self.client.generate(
            [self.task.encode_prompt(problem) for problem in problems],
            Sampling(self.cfg.learner.num_generations, rollout.temperature, rollout.max_new_tokens),
            seed=derive_seed(self.cfg.seed, "sampling", self.step),
            expected_version=self.step,
        )

    @torch.no_grad()
    def score(self, model: PreTrainedModel, graded: GradedBatch) -> tuple[Tensor, Tensor]:
        """Logprobs and entropy (B, T) of the whole batch, some rows at a time."""
        batch = graded.batch
        logprobs, entropy = torch.zeros_like(batch.sampler_logprobs), torch.zeros_like(batch.sampler_logprobs)
        everything = torch.arange(len(batch), device=logprobs.device)
        for index in batch.micro_batches(everything, self.cfg.learner.micro_batch_size):
            logprobs[index], entropy[index] = completion_logprobs(
                model, batch.rows(index), temperature=self.cfg.rollout.temperature
            )
        return logprobs, entropy

    def assign_credit(self, graded: GradedBatch, advantages: Tensor, entropy: Tensor) -> Credit:
        """Token advantages by the run's method, probe and gate."""
        probe = make_probe(
            self.cfg.probe.name,
            self.task.encode_marker(self.cfg.probe.conclude),
            step=self.step,
            warmup_steps=self.cfg.probe.warmup_steps,
        )
        noise = generator(self.cfg.seed, "importance", self.step)
        return assign_credit(
            CreditInputs(self.model, graded.batch, probe, entropy, noise), advantages, self.estimator, self.gate
        )

    def update(self, data: UpdateBatch) -> dict[str, float]:
        """`updates_per_rollout` optimizer steps, each on its share of whole groups. Raises DataError on a bad gradient."""
        cfg, reports = self.cfg.learner, []
        for part, index in enumerate(torch.arange(len(data.batch)).chunk(cfg.updates_per_rollout)):
            lr = learning_rate(cfg, self.step * cfg.updates_per_rollout + part)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.zero_grad(set_to_none=True)
            report = accumulate_gradient(
                self.model,
                data.rows(index.to(self.model.device)),
                cfg,
                temperature=self.cfg.rollout.temperature,
                max_completion_length=self.cfg.rollout.max_new_tokens,
            )
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.max_grad_norm))
            if not torch.isfinite(torch.tensor(norm)):
                raise DataError(f"The gradient of step {self.step} is {norm}: lower learner.lr or look at the rewards.")
            self.optimizer.step()
            reports.append(report | {"train/grad_norm": norm, "train/lr": lr})
        return {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}


class Clock:
    """Seconds per stage of a step."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._stages[stage] = time.perf_counter() - started

    def seconds(self) -> dict[str, float]:
        """Every stage, and the total since the clock was made."""
        return self._stages | {"total": time.perf_counter() - self._started}


def batch_metrics(graded: GradedBatch, advantages: Tensor, entropy: Tensor) -> dict[str, float]:
    """Diagnostics of the rollouts themselves (docs/METHOD.md §8)."""
    mask = graded.batch.completion_mask
    return {
        "train/reward_mean": float(graded.rewards.mean()),
        # With rewards 0 and 1 a group's advantages are all 0 or none is, so this is the share of groups as well.
        "train/zero_advantage_groups": float((advantages == 0).float().mean()),
        "train/entropy": float(entropy[mask].mean()),
        "train/completion_length": float(mask.sum(dim=1).float().mean()),
        "train/truncated_share": graded.truncated_share,
    }
