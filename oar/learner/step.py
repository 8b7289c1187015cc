"""One training step, top to bottom: generate -> grade -> advantages -> importance -> gate -> loss -> step -> sync.

Left out of GRPO on purpose: several epochs over a batch of rollouts, and (unless there is a KL term) the gradient of
groups whose rewards are all equal, since their advantage is 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.common.errors import DataError
from oar.common.seeding import derive_seed
from oar.config import TrainConfig, build
from oar.learner.beside import Beside
from oar.learner.collect import GradedBatch, GradedGroup, collate_groups
from oar.learner.compared import compared
from oar.learner.credit import Credited, Method, StepCredit, credit_assigner
from oar.learner.distributed import ALONE, Ranks, share_graded
from oar.learner.idle import stands_for
from oar.learner.parity import parity_metrics
from oar.learner.recovery import Steady, once
from oar.learner.rollouts import GroupSampler, GroupStream
from oar.learner.sharding import gathered, recomputed_layers
from oar.learner.transfer import push
from oar.learner.update import LossBatch, accumulate_gradient, learning_rate, make_optimizer
from oar.method.advantages import identity_weighted, overlong_penalty
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.gating import weight_metrics
from oar.model.parameters import whole
from oar.rollout.client.vllm import Engine
from oar.rollout.sync import WeightSync
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import RewardTerms
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did: metrics and seconds for the tracker, the batch and its credit for people to look at."""

    metrics: dict[str, float]
    seconds: dict[str, float]
    graded: GradedBatch
    advantages: Tensor
    credited: Credited
    scored: Tensor  # (B,) whether `credited` knows a completion's logprobs


class Learner:
    """The policy, its optimizer and the ways to the engine. `step` counts the updates of the policy that are done.

    With several ranks every method is called on all of them; only the first speaks to the engine.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        model: PreTrainedModel,
        task: Task,
        client: Engine,
        sync: WeightSync,
        ranks: Ranks = ALONE,
        beside: Beside | None = None,
    ) -> None:
        self.cfg, self.model, self.beside = cfg, model, beside or Beside(cfg)
        self.method = Method.built(cfg)
        self.task, self.client, self.sync, self.ranks = task, client, sync, ranks
        self.step = 0
        self.source = build("data.source", cfg.data.source, cfg.allow_targets).fitting(self.fits)
        self.reward = RewardTerms.built(cfg.reward, cfg.allow_targets)
        sampler = GroupSampler(cfg, task, client, self.source, self.reward, self.method.tree)
        self.groups = GroupStream(sampler if ranks.first else None)
        self.step_end_ids = torch.tensor(task.step_end_ids(), device=model.device)
        self.optimizer = make_optimizer(model, cfg.learner)

    def training_step(self, steady: Steady = once) -> StepReport:
        """Run one step; afterwards the engine holds the new weights under version `step`.

        `steady` runs what needs the engine, and repeats it where the engine is lost and comes back (oar/learner/recovery.py).
        """
        cfg, clock = self.cfg.learner, Clock(self.model.device)
        drawn = steady(partial(self.groups.take, self.step, clock))
        with clock("grading"):
            graded = self.batch(drawn.groups)
            advantages = self.advantages(graded)
        left_out = graded.truncated if cfg.overlong == "mask" else None
        data = LossBatch.of(graded.batch, advantages, left_out, all_contribute=self.method.all_contribute)
        credit = self.credit(graded, advantages, clock)
        with self.groups.drawing_next(self.step, clock):
            with clock("scoring"):
                # With one update the weights that score are those that are updated: its own forward scores and credits too.
                counts = self.counts(data, credit)
                learns = data.contributing(self.beside.kl_reference)
                scored = self.score(data, credit, counts > 0 if credit.comes_first else (counts > 0) & ~learns)
            with clock("update"):
                update, credited = self.update(data, credit, scored, counts, graded.weight_version)
                update |= self.beside.learn(graded, credit.known, credited.old_logprobs)
        self.step += 1
        self.beside.follow(self.model, self.step)
        with clock("sync"):
            steady(self.publish)
        metrics = batch_metrics(graded, advantages, credited, counts, cfg.num_generations) | drawn.metrics | update
        if self.cfg.method.generic is not None:
            metrics |= generic_metrics(graded, cfg.num_generations, self.cfg.method.generic.members)
        return StepReport(metrics, clock.seconds(), graded, advantages, credited, counts > 0)

    def fits(self, problem: Problem) -> bool:
        """Whether its prompt leaves room for a whole completion: the engine refuses one that does not.

        Raises DataError where the method is to show a solution, or the probe to read a reference, that the problem does not have,
        and where a prompt is to be stripped of nothing.
        """
        rollout, reference = self.cfg.rollout, self.cfg.probe.reference
        encode = {"solution": self.task.encode_solution, "answer": self.task.encode_gold}
        if reference is not None and not encode[reference](problem):
            raise DataError(
                f"probe=reference needs the {reference} of every problem, but {problem.id} of {problem.benchmark} has none: "
                "change probe.reference, or choose another probe."
            )
        if self.method.context == "solution":
            self.task.encode_contexts("solution", problem, [], [])
        prompts = [self.task.encode_prompt(problem)]
        if self.cfg.method.generic is not None:
            prompts.append(self.task.encode_generic(problem))
        return max(map(len, prompts)) <= rollout.max_model_len - rollout.max_new_tokens

    def batch(self, groups: Sequence[GradedGroup]) -> GradedBatch:
        """What was drawn, of which only the first rank has any, as tensors on all ranks."""
        device = self.model.device
        graded = None
        if self.ranks.first:
            needs_answer, method = self.cfg.probe.needs_answer, self.method
            graded = collate_groups(
                groups, self.task, device, method.context, needs_answer=needs_answer, spellings=method.spellings
            )
        return share_graded(graded, self.ranks, device)

    def advantages(self, graded: GradedBatch) -> Tensor:
        """(B,): how completions compare within their group; beside generic members, by how much likelier they are too."""
        weights, generic = list(self.reward.weights.values()), self.cfg.method.generic
        advantages = compared(self.cfg, weights, self.rewards(graded), graded.streams)
        if generic is None:
            return advantages
        batch = graded.batch
        likelihood = (batch.sampler_logprobs * batch.completion_mask).sum(dim=1) / batch.completion_lengths
        return identity_weighted(
            advantages, likelihood, self.cfg.learner.num_generations, generic.members, generic.identity
        )

    def rewards(self, graded: GradedBatch) -> Tensor:
        """(B,): what completions earn, less what their length costs."""
        if self.cfg.learner.overlong != "soft_penalty":
            return graded.rewards
        longest, buffer = self.cfg.rollout.max_new_tokens, self.cfg.learner.overlong_buffer
        return graded.rewards + overlong_penalty(graded.batch.completion_lengths, longest, buffer)

    def credit(self, graded: GradedBatch, advantages: Tensor, clock: Clock) -> StepCredit:
        """The method as it credits the completions of this step."""
        known = {
            **self.beside.look(self.model, graded, self.rewards(graded), clock),
            "announcement": self.task.encode_marker(self.cfg.probe.conclude),
            "step_end_ids": self.step_end_ids,
        }
        return StepCredit(
            credit_assigner(self.cfg, self.task, self.method.signal, self.step, self.beside.scorer),
            self.method.auxiliary,
            self.model,
            graded,
            self.rewards(graded),
            advantages,
            self.cfg,
            self.step,
            clock,
            known,
        )

    def counts(self, data: LossBatch, credit: StepCredit) -> Tensor:
        """(B,) how many completions each one's scores stand for: `stands_for`, or 1 where the credit or a KL needs them all."""
        idle = ~data.contributing(self.beside.kl_reference)  # the update runs no forward for these
        if credit.needs_batch or self.beside.adapted_kl is not None:
            return torch.ones_like(idle, dtype=torch.float32)
        return stands_for(idle, self.cfg.learner.num_generations, derive_seed(self.cfg.seed, "idle", self.step))

    @torch.no_grad()
    def score(self, data: LossBatch, credit: StepCredit, which: Tensor) -> list[Credited]:
        """This rank's share of the completions that `which` (B,) marks, by forwards that leave no graph."""
        cfg = self.cfg.learner
        micro_batches = data.batch.micro_batches(which.nonzero()[:, 0], cfg.micro_batch_tokens)
        own = micro_batches[self.ranks.rank :: self.ranks.count]
        with gathered(self.model), recomputed_layers(self.model, cfg.activation_checkpointing):
            if credit.needs_batch:
                found = credit(*self.whole_scores(data, own))  # on every rank alike
                return [found.lookup(rows) for rows in own]
            return [credit(rows, self.scores(data, rows)) for rows in own]

    def scores(self, data: LossBatch, rows: Tensor) -> Scores:
        """Of some completions, by the policy as it is."""
        return score_completions(self.model, data.batch.rows(rows), temperature=self.cfg.rollout.temperature)

    def whole_scores(self, data: LossBatch, own: Sequence[Tensor]) -> tuple[Tensor, Scores]:
        """All completions and their scores, without a forward, of which this rank computes those of `own`."""
        logprobs, entropy = torch.zeros(2, *data.loss_mask.shape, device=self.model.device)
        for rows in own:
            scores = self.scores(data, rows)
            logprobs[rows], entropy[rows] = scores.logprobs, scores.entropy
        everything = torch.arange(len(data.batch), device=self.model.device)
        return everything, Scores(self.ranks.total(logprobs), self.ranks.total(entropy))

    def update(
        self, data: LossBatch, credit: StepCredit, scored: list[Credited], counts: Tensor, version: int
    ) -> tuple[dict[str, float], Credited]:
        """`updates_per_rollout` optimizer steps on completions of weights `version`, each on its share of whole groups.

        `counts`: as `counts` gives them. Returns their mean metrics and the credit of all completions. Raises DataError on a
        gradient that is not finite, SyncError where sampler and learner disagree.
        """
        cfg, reports = self.cfg.learner, []
        joined = partial(Credited.joined, shape=data.loss_mask.shape, ranks=self.ranks, device=self.model.device)
        known = joined(scored) if credit.comes_first else None
        for part, index in enumerate(torch.arange(len(data.batch)).chunk(cfg.updates_per_rollout)):
            lr = learning_rate(cfg, self.step * cfg.updates_per_rollout + part)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.zero_grad(set_to_none=True)
            with gathered(self.model):
                report, found = accumulate_gradient(
                    self.model,
                    self.beside.kl_reference,
                    data,
                    index.to(self.model.device),
                    cfg,
                    temperature=self.cfg.rollout.temperature,
                    max_completion_length=self.cfg.rollout.max_new_tokens,
                    credit=credit if known is None else known.lookup,
                    surrogate=self.method.surrogate,
                    auxiliary=credit.auxiliary_loss,
                    ranks=self.ranks,
                )
            known = joined([*scored, *found]) if known is None else known
            # Whoever is to be scored has been by now, and no weight has moved.
            parity = self.parity(data, known, counts > 0, version)
            norm = float(whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.max_grad_norm)))
            if not math.isfinite(norm):
                raise DataError(f"The gradient of step {self.step} is {norm}: lower learner.lr or look at the rewards.")
            self.optimizer.step()
            reports.append(report | parity | {"train/grad_norm": norm, "train/lr": lr})
        assert known is not None  # there is at least one update
        return {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}, known

    def parity(self, data: LossBatch, credited: Credited, scored: Tensor, version: int) -> dict[str, float]:
        """How far sampler and learner are apart. Raises SyncError where it is too far for one and the same weights.

        Weights of an older version differ by what was learned since, for which there is no bound.
        """
        bound = self.cfg.sync.max_logprob_diff if version == self.step else math.inf
        batch = data.batch
        mask = batch.completion_mask & scored[:, None]
        return parity_metrics(batch.sampler_logprobs, credited.old_logprobs, mask, bound=bound)

    def publish(self) -> None:
        """Give the engine the weights, under version `step`."""
        push(self.sync, self.model, self.step, self.ranks)


def batch_metrics(
    graded: GradedBatch, advantages: Tensor, credited: Credited, counts: Tensor, num_generations: int
) -> dict[str, float]:
    """Diagnostics of the rollouts and of their credit (docs/METHOD.md §8); counts (B,): how many each one's scores stand for."""
    batch, mask = graded.batch, graded.batch.completion_mask
    counted = counts[:, None] * mask
    reweighted = batch.has_segments & (advantages != 0) & (counts > 0)
    weights = weight_metrics(credited.token_weights[reweighted], batch.reasoning_mask[reweighted])
    metrics = {
        "train/reward_mean": float(graded.rewards.mean()),
        "train/accuracy": float(graded.correct.float().mean()),
        "train/zero_advantage_groups": float((advantages.view(-1, num_generations) == 0).all(dim=1).float().mean()),
        "train/entropy": float((credited.entropy * counted).sum() / counted.sum()),
        "train/completion_length": float(mask.sum(dim=1).float().mean()),
        "train/truncated_share": float(graded.truncated.double().mean()),
        "credit/mean_abs_advantage": float((credited.token_advantages.abs() * counted).sum() / mask.sum()),
        "probe/fallback_share": float((~batch.has_segments).float().mean()),
    }
    names = graded.terms[0] if graded.terms else ()
    earned = {f"reward/{name}": sum(terms[name] for terms in graded.terms) / len(graded.terms) for name in names}
    if batch.context_ids.shape[1]:
        metrics["credit/context_share"] = float(batch.has_context.float().mean())
    how = {f"grading/{outcome}_share": share for outcome, share in graded.outcomes.items()}
    return metrics | earned | how | {f"weights/{name}": value for name, value in weights.items()}


def generic_metrics(graded: GradedBatch, num_generations: int, members: int) -> dict[str, float]:
    """What a group's ordinary completions earn, as without the last `members` of it, and what these generic ones do."""
    rewards, correct = (values.view(-1, num_generations) for values in (graded.rewards, graded.correct.float()))
    return {
        "train/reward_mean": float(rewards[:, :-members].mean()),
        "train/accuracy": float(correct[:, :-members].mean()),
        "generic/reward_mean": float(rewards[:, -members:].mean()),
        "generic/accuracy": float(correct[:, -members:].mean()),
    }
