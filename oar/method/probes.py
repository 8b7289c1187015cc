"""Outcome probes: what is taken for "the model's answer" when a token's influence on it is measured (docs/METHOD.md §3).

A probe says which token ids the model is given, at which positions it is read, what is made of the logits there (the
outcome), and how far a changed outcome is from the clean one (the divergence).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from oar.common.errors import DataError
from oar.method.batch import CompletionBatch


@dataclass(frozen=True, slots=True)
class ProbeInputs:
    """Rows for the model, and where to read the answer off them.

    input_ids (B, L): prompt | reasoning | announcement [| answer], padded at the right; lengths (B,);
    reasoning_positions (B, T): where reasoning token t stands in its row (meaningful under the reasoning mask);
    read_positions (B, K): positions whose next-token logits are read; read_mask (B, K); read_ids (B, K): the token that
    the completion has next there.
    """

    input_ids: Tensor
    lengths: Tensor
    reasoning_positions: Tensor
    read_positions: Tensor
    read_mask: Tensor
    read_ids: Tensor

    def rows(self, index: Tensor) -> "ProbeInputs":
        """Some of the rows, padding cut to what they need."""
        return ProbeInputs(
            self.input_ids[index, : int(self.lengths[index].max())],
            self.lengths[index],
            self.reasoning_positions[index],
            self.read_positions[index],
            self.read_mask[index],
            self.read_ids[index],
        )


class Probe(Protocol):
    """A definition of the outcome. For R rows: logits (R, K, V), read_mask and read_ids (R, K)."""

    @property
    def model(self) -> PreTrainedModel | None:
        """Whose outcome it is; None: the policy's."""
        ...

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """What to run the model on, for completions that have an answer span, or reasoning where the probe needs no answer."""
        ...

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """The outcome of each row: log-probabilities (R, V), or a log-likelihood (R,)."""
        ...

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """How far each row's outcome has moved, (R,), in nats, or in a reward model's own unit."""
        ...

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """The log-likelihood of what each row's outcome says, (R,), in nats; of a score the score itself."""
        ...


class _OfThePolicy:
    model: PreTrainedModel | None = None


class _Distribution(_OfThePolicy):
    """Outcomes that are distributions over the vocabulary."""

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """KL(clean || changed)."""
        return (clean.exp() * (clean - changed)).sum(dim=-1)

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """Of the distribution's most likely token."""
        return outcome.amax(dim=-1)


class _Number(_OfThePolicy):
    """Outcomes that are one number."""

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """The outcome itself."""
        return outcome


class _Drop(_Number):
    """What matters is whether a change makes the completion's own answer, or the right one, less likely."""

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """The drop: negative where the change made the outcome larger."""
        return clean - changed


class _Move(_Number):
    """What matters is how far a change moves the number, whichever way: a mistake lowers it, and its change raises it."""

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """|clean - changed|, whose slope is 1 or -1 even where nothing moved: what is too small to see is no zero gradient."""
        return torch.where(changed < clean, clean - changed, changed - clean)


class LastTokenProbe(_Distribution):
    """`lt_logits`: the next-token distribution after the reasoning and a fixed conclude text; no answer in the input."""

    def __init__(self, conclude_ids: Sequence[int]) -> None:
        """`conclude_ids`: the conclude text's token ids, at least one (by default the marker's)."""
        self.conclude_ids = tuple(conclude_ids)

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | reasoning | conclude text; one position read, the last."""
        position = torch.arange(batch.input_ids.shape[1] + len(self.conclude_ids), device=batch.input_ids.device)
        end = (batch.prompt_lengths + batch.reasoning_mask.sum(dim=1))[:, None]
        padding = batch.input_ids.new_full((len(batch), len(self.conclude_ids)), batch.pad_id)
        ids = torch.cat([batch.input_ids, padding], dim=1).masked_fill(position >= end, batch.pad_id)
        for offset, token in enumerate(self.conclude_ids):
            ids = ids.masked_fill(position == end + offset, token)
        lengths = end[:, 0] + len(self.conclude_ids)
        first_answer = batch.answer_mask.int().argmax(dim=1, keepdim=True)
        return ProbeInputs(
            input_ids=ids[:, : int(lengths.max())],
            lengths=lengths,
            reasoning_positions=_completion_positions(batch),
            read_positions=lengths[:, None] - 1,
            read_mask=torch.ones_like(lengths[:, None], dtype=torch.bool),
            read_ids=batch.completion_ids.gather(1, first_answer),
        )

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """Log-probabilities of the next token, (R, V)."""
        return logits[:, 0].log_softmax(dim=-1)


class _AnswerSpan:
    """Probes that read the K positions which predict the answer's tokens, in the completion as it is."""

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | reasoning | marker | answer; its last token, which no position that is read sees, is cut off."""
        answer_start = batch.answer_mask.int().argmax(dim=1, keepdim=True)
        answer_length = batch.answer_mask.sum(dim=1, keepdim=True)
        step = torch.arange(int(answer_length.max()), device=batch.input_ids.device)
        token = (answer_start + step).clamp(max=batch.completion_ids.shape[1] - 1)
        lengths = (batch.prompt_lengths[:, None] + answer_start + answer_length)[:, 0] - 1
        position = torch.arange(int(lengths.max()), device=batch.input_ids.device)
        ids = batch.input_ids[:, : len(position)].masked_fill(position >= lengths[:, None], batch.pad_id)
        read_mask = step < answer_length
        return ProbeInputs(
            input_ids=ids,
            lengths=lengths,
            reasoning_positions=_completion_positions(batch),
            read_positions=torch.where(read_mask, batch.prompt_lengths[:, None] + token - 1, 0),
            read_mask=read_mask,
            read_ids=batch.completion_ids.gather(1, token),
        )


class AnswerMeanProbe(_Distribution, _AnswerSpan):
    """`as_mean`: the softmax of the logits' mean over the answer's positions."""

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """Log-probabilities, (R, V)."""
        mask = read_mask[:, :, None]
        return (logits.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)).log_softmax(dim=-1)


class AnswerJointProbe(_Drop, _AnswerSpan):
    """`as_joint`: the mean log-likelihood of the answer's tokens, a scalar."""

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """Mean log-likelihood per answer token, (R,)."""
        return _log_likelihood(logits, read_mask, read_ids) / read_mask.sum(dim=1)


class GoldProbe(_Drop):
    """The log-likelihood of the right answer behind the completion's own reasoning and marker, whatever it answers."""

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | reasoning | marker | right answer; its last token, which no position that is read sees, is cut off."""
        start = batch.prompt_lengths + batch.answer_mask.int().argmax(dim=1)
        return _read_behind(batch, start, (), batch.gold_ids, batch.gold_mask)

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """log p of the whole right answer, (R,), in nats."""
        return _log_likelihood(logits, read_mask, read_ids)


class GoldTokensProbe(GoldProbe):
    """How many tokens of the right answer are right, were each one drawn behind the right ones before it: between 0 and all.

    The log-likelihood of the whole has no floor: where the answer has become unlikely, a token may move it by many nats.
    """

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """The sum of the tokens' probabilities, (R,), in tokens."""
        return _chosen(logits, read_ids).exp().masked_fill(~read_mask, 0.0).sum(dim=1)


class ReferenceProbe(_Move):
    """`reference`: the mean log-likelihood of a reference response behind the reasoning and a conclude text; no answer needed."""

    def __init__(self, conclude_ids: Sequence[int], of: str) -> None:
        """`of` (`oar.names.REFERENCES`): the batch's reference responses (`solution`), or its right answers (`answer`)."""
        self.conclude_ids, self.of = tuple(conclude_ids), of

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | reasoning | conclude text | reference, its last token cut off. Raises DataError where one has none."""
        ids, mask = {
            "solution": (batch.reference_ids, batch.reference_mask),
            "answer": (batch.gold_ids, batch.gold_mask),
        }[self.of]
        if not mask.any(dim=1).all():
            raise DataError(f"probe=reference needs the {self.of} of every problem in tokens, but one has none.")
        end = batch.prompt_lengths + batch.reasoning_mask.sum(dim=1)
        return _read_behind(batch, end, self.conclude_ids, ids, mask)

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """Mean log-likelihood per token of the reference, (R,), in nats: long and short ones are alike."""
        return _log_likelihood(logits, read_mask, read_ids) / read_mask.sum(dim=1)


class RewardModelProbe(_Move):
    """`reward_model`: the score that a frozen sequence-classification model gives the whole completion; no answer needed."""

    def __init__(self, model: PreTrainedModel) -> None:
        """`model`: with one label, reading the policy's token ids (`oar.model.load.load_scorer`)."""
        self.model, self._padding = model, model.config.pad_token_id

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | completion, read where transformers reads a score: at the last token that is not the model's padding."""
        position = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        held = position < (batch.prompt_lengths + batch.completion_lengths)[:, None]
        if self._padding is not None:
            held &= batch.input_ids != self._padding
        last = torch.where(held, position, 0).amax(dim=1, keepdim=True)
        width = int(last.max()) + 1
        return ProbeInputs(
            input_ids=batch.input_ids[:, :width].masked_fill(position[:width] > last, batch.pad_id),
            lengths=last[:, 0] + 1,
            reasoning_positions=_completion_positions(batch),
            read_positions=last,
            read_mask=torch.ones_like(last, dtype=torch.bool),
            read_ids=torch.zeros_like(last),
        )

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """The score of each row, (R,), in the model's own unit."""
        return logits[:, 0, 0]


def make_probe(
    name: str,
    conclude_ids: Sequence[int],
    *,
    step: int,
    warmup_steps: int,
    reference: str | None = None,
    scorer: PreTrainedModel | None = None,
) -> Probe:
    """The probe of this step: `lt_logits`, `as_mean`, `as_joint`, `reference`, `reward_model`, or `warmup`, the paper's schedule.

    `warmup` is `lt_logits` for steps 0 ... warmup_steps - 1, then `as_mean`. `reference` and `scorer`: what the probes of these
    kinds are made of. Raises KeyError for any other name, or where they are missing.
    """
    if name == "reward_model" and scorer is not None:
        return RewardModelProbe(scorer)
    if name == "reference" and reference is not None:
        return ReferenceProbe(conclude_ids, reference)
    if name == "warmup":
        name = "lt_logits" if step < warmup_steps else "as_mean"
    probes: dict[str, Callable[[], Probe]] = {
        "lt_logits": lambda: LastTokenProbe(conclude_ids),
        "as_mean": AnswerMeanProbe,
        "as_joint": AnswerJointProbe,
    }
    return probes[name]()


def _log_likelihood(logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
    """(R,) in nats, of the tokens under the mask together."""
    return _chosen(logits, read_ids).masked_fill(~read_mask, 0.0).sum(dim=1)


def _chosen(logits: Tensor, read_ids: Tensor) -> Tensor:
    """Log-probabilities (R, K) of the tokens that are read, from logits (R, K, V)."""
    return logits.log_softmax(dim=-1).gather(2, read_ids[:, :, None])[:, :, 0]


def _read_behind(
    batch: CompletionBatch, end: Tensor, conclude: Sequence[int], ids: Tensor, mask: Tensor
) -> ProbeInputs:
    """Rows of what stands before `end` (B,) | conclude text | ids (B, K) under the mask, read where these are predicted.

    The last one of them, which no position that is read sees, is cut off.
    """
    position = torch.arange(batch.input_ids.shape[1] + len(conclude) + ids.shape[1], device=end.device)
    said = torch.cat([*(ids.new_full((len(batch), 1), token) for token in conclude), ids], dim=1)
    offset = position - end[:, None]  # (B, L)
    lengths = end + len(conclude) + mask.sum(dim=1) - 1
    own = pad(batch.input_ids, (0, len(conclude) + ids.shape[1]), value=batch.pad_id)
    rows = torch.where(offset < 0, own, said.gather(1, offset.clamp(0, said.shape[1] - 1)))
    rows = rows.masked_fill(position >= lengths[:, None], batch.pad_id)
    first = (end + len(conclude) - 1)[:, None]
    return ProbeInputs(
        input_ids=rows[:, : int(lengths.max())],
        lengths=lengths,
        reasoning_positions=_completion_positions(batch),
        read_positions=torch.where(mask, first + torch.arange(ids.shape[1], device=end.device), 0),
        read_mask=mask,
        read_ids=ids,
    )


def _completion_positions(batch: CompletionBatch) -> Tensor:
    """(B, T) where completion token t stands in its row."""
    steps = torch.arange(batch.completion_ids.shape[1], device=batch.input_ids.device)
    return batch.prompt_lengths[:, None] + steps
