"""What every estimator of token importance is given and what it gives back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.errors import MissingInputError
from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import Scores
from oar.method.probes import Probe


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """All an estimator may look at.

    scores: the policy's own, of the same rows as `batch`; seeds: B numbers: every random draw for a completion is made on the
    CPU from its own seed, so that how completions are batched never changes it; marks: ground truth (B, T) by name
    ("causal", "written", "error", and token ids: "right", "all_right"), empty where the task knows none; advantages (B,), None
    where nobody has compared completions; groups (B,): completions of one prompt have the same number, None where nobody has
    said which they are; rewards (B,); values (B, T): mean reward of continuations drawn from before a token, NaN where none
    were; both None where nobody has said them; step: the training step, from 0, on which a schedule depends; temperature: what
    the sampler divided logits by; neutral_id: the token that counterfactual=text puts in a token's place, None where nobody has
    said it.

    For methods with a privileged look or a loss of their own: teacher, who has that look, None for the policy itself;
    reference: the frozen starting model, None where nobody has loaded it; old_logprobs (B, T): of the policy before its
    update, None for those of `scores`; correct (B,): whether the verifier took the answer; announcement: the token ids that
    announce an answer; step_end_ids: those that end a step of the reasoning, None where nobody has said them;
    spellings (B, V, K): token ids of the right answer in other spellings than `batch.gold_ids`, -1 behind their end, None where
    nobody has said them; process_rewards (B, T): of a reward model or head, None where there is none; state_values (B, T): of
    a value head, of the state that each token is drawn from, None where there is none; reference_logprobs (B, T) and
    kl_coefficients (B,): of the starting model, and of a KL term by class of problem, None where nobody has said them.
    """

    model: PreTrainedModel
    batch: CompletionBatch
    probe: Probe
    scores: Scores
    seeds: Sequence[int]
    marks: Mapping[str, Tensor] = field(default_factory=dict)
    advantages: Tensor | None = None
    groups: Tensor | None = None
    rewards: Tensor | None = None
    values: Tensor | None = None
    step: int = 0
    temperature: float = 1.0
    neutral_id: int | None = None
    teacher: PreTrainedModel | None = None
    reference: PreTrainedModel | None = None
    old_logprobs: Tensor | None = None
    correct: Tensor | None = None
    announcement: Sequence[int] = ()
    step_end_ids: Tensor | None = None
    spellings: Tensor | None = None
    process_rewards: Tensor | None = None
    state_values: Tensor | None = None
    reference_logprobs: Tensor | None = None
    kl_coefficients: Tensor | None = None

    @property
    def outcome_model(self) -> PreTrainedModel:
        """The model whose outcome is measured: the probe's own, else the policy."""
        return self.probe.model or self.model

    def known_advantages(self) -> Tensor:
        """(B,), above 0 for completions that are to be drawn more often. Raises MissingInputError where nobody has said them."""
        if self.advantages is None:
            raise MissingInputError("This method needs the advantages of the completions, but was called without.")
        return self.advantages

    def known_groups(self) -> Tensor:
        """(B,) equal numbers for completions of one prompt. Raises MissingInputError where nobody has said them."""
        if self.groups is None:
            raise MissingInputError(
                "This method compares completions of one prompt, but was called without their groups."
            )
        return self.groups

    def known_rewards(self) -> Tensor:
        """(B,) what the completions earned. Raises MissingInputError where nobody has said it."""
        if self.rewards is None:
            raise MissingInputError("This method needs the rewards of the completions, but was called without.")
        return self.rewards

    def known_marks(self, name: str, otherwise: str) -> Tensor:
        """(B, T), whether a token has that mark.

        Raises MissingInputError, which ends with `otherwise`, where the task knows none.
        """
        known = {name: marks for name, marks in self.marks.items() if marks.dtype == torch.bool}  # others are token ids
        if name not in known:
            raise MissingInputError(
                f"The task must know the {name!r} tokens of its completions, but knows "
                f"{', '.join(sorted(known)) or 'no marks'}: {otherwise}."
            )
        return known[name]

    def known_values(self) -> Tensor:
        """(B, T) mean rewards of continuations. Raises MissingInputError where none were drawn."""
        if self.values is None:
            raise MissingInputError(
                "This method needs rewards of continuations, but none were drawn: a training run draws them."
            )
        return self.values

    def known_reference(self) -> PreTrainedModel:
        """The frozen starting model. Raises MissingInputError where nobody has loaded it."""
        if self.reference is None:
            raise MissingInputError("This method needs the starting model beside the policy, but was called without.")
        return self.reference

    def known_correct(self) -> Tensor:
        """(B,) whether an answer is right. Raises MissingInputError where nobody has said it."""
        if self.correct is None:
            raise MissingInputError("This method needs to know which completions are right, but was called without.")
        return self.correct

    def known_spellings(self) -> Tensor:
        """(B, V, K) of the right answer. Raises MissingInputError where nobody has said them."""
        if self.spellings is None:
            raise MissingInputError(
                "This method needs other spellings of the right answer, but was called without: train with it."
            )
        return self.spellings

    def known_process_rewards(self) -> Tensor:
        """(B, T) of a reward model or head. Raises MissingInputError where there is none."""
        if self.process_rewards is None:
            raise MissingInputError(
                "This method trains a reward model or head beside the policy, but was called without: train with it."
            )
        return self.process_rewards

    def known_state_values(self) -> Tensor:
        """(B, T) of a value head. Raises MissingInputError where there is none."""
        if self.state_values is None:
            raise MissingInputError(
                "This method trains a value head beside the policy, but was called without: train with it."
            )
        return self.state_values

    def known_neutral_id(self) -> int:
        """What counterfactual=text puts in a token's place. Raises MissingInputError where nobody has said it."""
        if self.neutral_id is None:
            raise MissingInputError(
                "counterfactual=text needs the token of its text, but was called without: choose another one."
            )
        return self.neutral_id

    def known_contexts(self) -> CompletionBatch:
        """The batch, with its privileged prompts. Raises MissingInputError where nobody has made any."""
        if not self.batch.context_ids.shape[1]:
            raise MissingInputError(
                "This method looks at completions with a privileged context, but was called without: train with it, or "
                "check it alone."
            )
        return self.batch

    def rows(self, index: Tensor) -> "CreditInputs":
        """The same for some of the completions (integer positions)."""
        known = {name: getattr(self, name) for name in BY_COMPLETION}
        marks = {name: mark[index] for name, mark in self.marks.items()}
        seeds = tuple(self.seeds[row] for row in index.tolist())
        return replace(
            self,
            batch=self.batch.rows(index),
            scores=self.scores.rows(index),
            seeds=seeds,
            marks=marks,
            **{name: values[index] for name, values in known.items() if values is not None},
        )


BY_COMPLETION = (
    *("advantages", "groups", "rewards", "values", "old_logprobs", "correct"),
    *("spellings", "process_rewards", "state_values", "reference_logprobs", "kl_coefficients"),
)


class ImportanceEstimator(Protocol):
    """Importance I_t >= 0 of each reasoning token: a constant of the loss, no gradient flows into the weights."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, 0 outside the reasoning mask.

        Every completion in `inputs.batch` has an answer span, or a probe that needs none.
        """
        ...


class WeightEstimator(Protocol):
    """Token weights w_t >= 0 without a gate: A_t = w_t A. Their mean need not be 1; a completion's fallback is weight 1."""

    gives: ClassVar[Literal["weights"]]

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, read under the completion mask. Every completion in `inputs.batch` has an advantage."""
        ...


class AdvantageEstimator(Protocol):
    """Signed token advantages A_t in place of A, groups without a difference in reward included; the fallback is A itself."""

    gives: ClassVar[Literal["advantages"]]

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, read under the completion mask."""
        ...


CreditSignal = ImportanceEstimator | WeightEstimator | AdvantageEstimator


@runtime_checkable
class MadeFrom(Protocol):
    """A signal that is made from another one: its control, its sign, or its numbers on some tokens."""

    of: Any


GIVES = ("importance", "weights", "advantages")


def gives(signal: CreditSignal) -> str:
    """One of GIVES, by the class attribute of that name: what a signal's numbers are; importance where it says nothing."""
    return getattr(signal, "gives", GIVES[0])


def needs_batch(signal: CreditSignal) -> bool:
    """Whether a signal, or the one it is made from, compares completions (`needs_batch = True` in its class).

    Such a signal is called once with all completions of a step, whose `scores` then have no forward: it runs its own.
    """
    return getattr(signal, "needs_batch", False) or (isinstance(signal, MadeFrom) and needs_batch(signal.of))


def reads_rewards(signal: CreditSignal) -> bool:
    """Whether a signal compares rewards by itself and never looks at advantages (`reads_rewards = True` in its class)."""
    return getattr(signal, "reads_rewards", False)


def needs_continuations(signal: CreditSignal) -> bool:
    """Whether a signal reads `CreditInputs.values` (`needs_continuations = True` in its class)."""
    return getattr(signal, "needs_continuations", False)


def reads_gold(signal: CreditSignal) -> bool:
    """Whether a signal, or the one it is made from, reads the right answer behind the marker, whatever the probe is."""
    return getattr(signal, "reads_gold", False) or (isinstance(signal, MadeFrom) and reads_gold(signal.of))


def context_of(part: object) -> str | None:
    """The privileged look (`oar.names.CONTEXTS`) that a part of a method, or the one it is made from, asks for, if any.

    It says so by an attribute `context`, of its class or a parameter.
    """
    found: str | None = getattr(part, "context", None)
    return context_of(part.of) if found is None and isinstance(part, MadeFrom) else found


def chunks(row_lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of N lengths in groups of at most `max_tokens` tokens, padding included; one row at least, the longest first.

    Rows of like length go together, so that little is padded.
    """
    order = sorted(range(len(row_lengths)), key=row_lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        longest = row_lengths[order[start]]
        count = max(1, max_tokens // max(1, longest))
        yield order[start : start + count]
        start += count
