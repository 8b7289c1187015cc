"""The credit of one training step: the configuration's method, called with each forward that the step runs anyway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.clock import Clock
from oar.common.errors import ConfigError
from oar.common.seeding import derive_seed
from oar.config import TrainConfig, build
from oar.learner.collect import GradedBatch
from oar.learner.distributed import Ranks
from oar.learner.probe import probe_of
from oar.learner.tree import check_tree
from oar.method.auxiliary import AuxiliaryLoss, KlByClass, NoPolicyLoss
from oar.method.credit import Credit, CreditAssigner
from oar.method.forward.logprobs import Scores
from oar.method.gating import make_gate
from oar.method.importance import (
    CreditInputs,
    CreditSignal,
    ImplicitReward,
    RewardHead,
    TreeAdvantages,
    UniformImportance,
    ValueHead,
    gives,
    needs_batch,
    needs_continuations,
    reads_gold,
    reads_rewards,
)
from oar.method.importance.base import BY_COMPLETION, context_of
from oar.method.losses import Surrogate
from oar.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a configuration's method that are objects: its signal, and what changes the loss, if anything does."""

    signal: CreditSignal
    surrogate: Surrogate | None
    auxiliary: AuxiliaryLoss | None

    @classmethod
    def built(cls, cfg: TrainConfig) -> "Method":
        """Raises ConfigError where a class cannot be built, and where the parts do not go together."""
        parts = {
            name: target and build(f"method.{name}", target, cfg.allow_targets)
            for name, target in vars(cfg.method).items()
            if name in ("estimator", "surrogate", "auxiliary")
        }
        method = cls(parts["estimator"], parts["surrogate"], parts["auxiliary"])
        if method.signed and cfg.learner.ratio_level == "sequence":
            raise ConfigError(
                "learner.ratio_level must be token where a method gives signed token advantages, "
                "for a sequence is clipped as a whole, by one sign."
            )
        if needs_continuations(method.signal) and cfg.method.continuations is None:
            raise ConfigError(
                f"method.continuations must say what is drawn for {cfg.method.name}, which needs the values of states, but is "
                "null: take its keys from conf/method/vineppo.yaml."
            )
        if cfg.method.continuations is not None and cfg.learner.overlong == "soft_penalty":
            raise ConfigError(
                "learner.overlong must be keep or mask with method.continuations, whose rewards have no penalty for length: put "
                "it among the rewards, as in reward=[answer,length]."
            )
        _refuse_without_effect(cfg, method)
        contexts = {context_of(method.signal), context_of(method.auxiliary)} - {None}
        if len(contexts) > 1:
            raise ConfigError(
                "method.estimator and method.auxiliary must ask for the same context, since a completion has one, but ask for "
                f"{' and '.join(sorted(map(str, contexts)))}."
            )
        if method.learned is not None and (cfg.learner.ranks > 1 or cfg.learner.compute_dtype != "float32"):
            raise ConfigError(
                "learner.ranks must be 1 and learner.compute_dtype float32 where a method trains a reward model or a head, "
                f"which one rank holds whole, but are {cfg.learner.ranks} and {cfg.learner.compute_dtype}."
            )
        if method.kl_by_class is not None and cfg.learner.ranks > 1:
            raise ConfigError(
                "learner.ranks must be 1 where a KL term knows classes of problems, as the first rank does, but is "
                f"{cfg.learner.ranks}."
            )
        if reads_gold(method.signal) and not cfg.probe.needs_answer:
            raise ConfigError(
                f"probe must be one that reads the answer with {cfg.method.name}, which reads the right answer in its place, but "
                f"is {cfg.probe.name}."
            )
        if method.tree is not None:
            check_tree(method.tree, cfg)
        if cfg.method.teacher.kind != "live" and method.context is None:
            raise ConfigError(
                f"method.teacher.kind must be live where the method asks for no privileged context, but is "
                f"{cfg.method.teacher.kind!r}."
            )
        return method

    @property
    def signed(self) -> bool:
        """Whether the signal gives token advantages of its own."""
        return gives(self.signal) == "advantages"

    @property
    def context(self) -> str | None:
        """What its privileged look shows, if it asks for one."""
        return context_of(self.signal) or context_of(self.auxiliary)

    @property
    def spellings(self) -> bool:
        """Whether it scores the right answer in other spellings too (`spellings` of the signal)."""
        return getattr(self.signal, "spellings", False)

    @property
    def learned(self) -> ImplicitReward | RewardHead | ValueHead | None:
        """How the reward model or the head learns that is trained beside the policy, if any (`learned` of the signal)."""
        return getattr(self.signal, "learned", None)

    @property
    def tree(self) -> TreeAdvantages | None:
        """How the completions of a group are drawn from one another, where they are."""
        return self.signal if isinstance(self.signal, TreeAdvantages) else None

    @property
    def kl_by_class(self) -> KlByClass | None:
        """Its KL term with a coefficient for each class of problems, where it has one."""
        return self.auxiliary if isinstance(self.auxiliary, KlByClass) else None

    @property
    def needs_reference(self) -> bool:
        """Whether it looks at the starting model: by a reward model or head, or `needs_reference` of the auxiliary loss."""
        return isinstance(self.learned, ImplicitReward | RewardHead) or getattr(
            self.auxiliary, "needs_reference", False
        )

    @property
    def all_contribute(self) -> bool:
        """Whether a completion of advantage 0 may have a gradient too."""
        return self.signed or self.auxiliary is not None


def _refuse_without_effect(cfg: TrainConfig, method: Method) -> None:
    """Raises ConfigError for a key that would change nothing: whoever typed it believes that it does."""
    how, signal = cfg.method, method.signal
    without_advantages = reads_rewards(signal) or isinstance(signal, NoPolicyLoss)
    identity = 0 if how.generic is None else how.generic.identity
    # Of weights whose mean is 1 nothing is left when they are spread evenly.
    spread = how.control == "even" and (gives(signal) == "importance" or how.preserve_mass)
    idle = {
        "control": ("none", spread or (how.control != "none" and isinstance(signal, UniformImportance | NoPolicyLoss))),
        "times_surprisal": ("false", how.times_surprisal and gives(signal) != "importance"),
        "preserve_mass": ("false", how.preserve_mass and gives(signal) != "weights"),
        "decoupled_rewards": ("false", how.decoupled_rewards and without_advantages),
        "generic.identity": ("0", identity > 0 and without_advantages),
    }
    for key, (idle_at, typed) in idle.items():
        if typed:
            raise ConfigError(f"method.{key} must be {idle_at} with {how.name}, where it changes nothing.")


def credit_assigner(
    cfg: TrainConfig, task: Task, signal: CreditSignal, step: int, scorer: PreTrainedModel | None = None
) -> CreditAssigner:
    """The method of a configuration in training step `step` (from 0), on which the probe's warm-up depends.

    scorer: the reward model of probe=reward_model.
    """
    return CreditAssigner(
        signal,
        make_gate(**cfg.gating.options()),
        probe_of(cfg.probe, task, step, scorer),
        cfg.method.times_surprisal,
        cfg.method.preserve_mass,
        cfg.method.control,
        task.encode_neutral(cfg.counterfactual.text),
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

    def lookup(self, rows: Tensor, _: Scores | None = None) -> "Credited":
        """Of some completions, where all of the batch are here in its order; what their newest forward says changes nothing."""
        return Credited(rows, *(values[rows] for values in self._values()))

    @staticmethod
    def joined(parts: Sequence["Credited"], shape: torch.Size, ranks: Ranks, device: torch.device) -> "Credited":
        """All B completions (shape: (B, T)) in the batch's order; each may be in a part of one rank.

        One that is in none was not scored: its tokens weigh 1, and all else is 0.
        """
        values, scored = [torch.zeros(shape, device=device) for _ in range(5)], torch.zeros(shape[0], device=device)
        for part in parts:
            scored[part.rows] = 1
            for whole, some in zip(values, part._values(), strict=True):
                whole[part.rows] = some
        found = Credited(torch.arange(shape[0], device=device), *(ranks.total(whole) for whole in values))
        found.token_weights[ranks.total(scored) == 0] = 1
        return found

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
    auxiliary: AuxiliaryLoss | None
    model: PreTrainedModel
    graded: GradedBatch
    rewards: Tensor  # (B,)
    advantages: Tensor  # (B,)
    cfg: TrainConfig
    step: int  # from 0
    clock: Clock
    known: Mapping[str, Any] = field(default_factory=dict)  # more of `CreditInputs` by name, of all completions

    @property
    def needs_batch(self) -> bool:
        """Whether the credit of a completion depends on the others."""
        return needs_batch(self.assigner.signal)

    @property
    def comes_first(self) -> bool:
        """Whether all completions are scored and credited before the update, whose own forward comes too late for the credit."""
        return self.cfg.learner.updates_per_rollout > 1 or self.needs_batch

    def __call__(self, rows: Tensor, scores: Scores) -> Credited:
        """`scores`: those of the completions `rows` (R,), with a graph or without."""
        with self.clock("importance"):
            credit = self.assigner.assign(self.inputs(rows, scores))
        return Credited.of(rows, scores, credit)

    def auxiliary_loss(self, rows: Tensor, scores: Scores, old_logprobs: Tensor) -> Tensor | None:
        """(R, T) of the completions `rows`, whose `scores` are the update's own; None where the method has none."""
        return None if self.auxiliary is None else self.auxiliary(self.inputs(rows, scores, old_logprobs))

    def inputs(self, rows: Tensor, scores: Scores, old_logprobs: Tensor | None = None) -> CreditInputs:
        """All that is known of the completions `rows`."""
        return CreditInputs(
            self.model,
            self.graded.batch.rows(rows),
            self.assigner.probe,
            scores,
            seeds=[derive_seed(self.cfg.seed, "credit", self.step, row) for row in rows.tolist()],
            marks={name: mark[rows] for name, mark in self.graded.marks.items()},
            advantages=self.advantages[rows],
            groups=rows // self.cfg.learner.num_generations,
            rewards=self.rewards[rows],
            values=None if self.graded.values is None else self.graded.values[rows],
            spellings=None if self.graded.spellings is None else self.graded.spellings[rows],
            step=self.step,
            temperature=self.cfg.rollout.temperature,
            old_logprobs=old_logprobs,
            correct=self.graded.correct[rows],
            **{name: value[rows] if name in BY_COMPLETION else value for name, value in self.known.items()},
        )
