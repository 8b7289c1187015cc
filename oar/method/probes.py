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

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """What to run the model on, for completions that have an answer span."""
        ...

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """The outcome of each row: log-probabilities (R, V), or a log-likelihood (R,)."""
        ...

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """How far each row's outcome has moved, (R,), in nats."""
        ...

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """The log-likelihood of what each row's outcome says, (R,), in nats."""
        ...


class _Distribution:
    """Outcomes that are distributions over the vocabulary."""

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """KL(clean || changed)."""
        return (clean.exp() * (clean - changed)).sum(dim=-1)

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """Of the distribution's most likely token."""
        return outcome.amax(dim=-1)


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


class AnswerJointProbe(_AnswerSpan):
    """`as_joint`: the mean log-likelihood of the answer's tokens, a scalar."""

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """Mean log-likelihood per answer token, (R,)."""
        chosen = logits.log_softmax(dim=-1).gather(2, read_ids[:, :, None])[:, :, 0]
        return chosen.masked_fill(~read_mask, 0.0).sum(dim=1) / read_mask.sum(dim=1)

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """The drop of the log-likelihood: negative where the change made the answer likelier."""
        return clean - changed

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """The outcome itself."""
        return outcome


class GoldProbe:
    """The log-likelihood of the right answer behind the completion's own reasoning and marker, whatever it answers."""

    def inputs(self, batch: CompletionBatch) -> ProbeInputs:
        """Rows prompt | reasoning | marker | right answer; its last token, which no position that is read sees, is cut off."""
        start = batch.prompt_lengths[:, None] + batch.answer_mask.int().argmax(dim=1, keepdim=True)
        count = batch.gold_mask.sum(dim=1, keepdim=True)
        lengths = (start + count)[:, 0] - 1
        offset = torch.arange(int(lengths.max()), device=start.device) - start  # (B, L)
        own = pad(batch.input_ids, (0, offset.shape[1]), value=batch.pad_id)[:, : offset.shape[1]]
        gold = batch.gold_ids.gather(1, offset.clamp(0, batch.gold_ids.shape[1] - 1))
        ids = torch.where(offset < 0, own, gold).masked_fill(offset >= count - 1, batch.pad_id)
        step = torch.arange(batch.gold_ids.shape[1], device=start.device)
        return ProbeInputs(
            input_ids=ids,
            lengths=lengths,
            reasoning_positions=_completion_positions(batch),
            read_positions=torch.where(batch.gold_mask, start - 1 + step, 0),
            read_mask=batch.gold_mask,
            read_ids=batch.gold_ids,
        )

    def outcome(self, logits: Tensor, read_mask: Tensor, read_ids: Tensor) -> Tensor:
        """log p of the whole right answer, (R,), in nats."""
        chosen = logits.log_softmax(dim=-1).gather(2, read_ids[:, :, None])[:, :, 0]
        return chosen.masked_fill(~read_mask, 0.0).sum(dim=1)

    def divergence(self, clean: Tensor, changed: Tensor) -> Tensor:
        """The drop of the log-likelihood: negative where the change made the right answer likelier."""
        return clean - changed

    def log_likelihood(self, outcome: Tensor) -> Tensor:
        """The outcome itself."""
        return outcome


def make_probe(name: str, conclude_ids: Sequence[int], *, step: int, warmup_steps: int) -> Probe:
    """The probe of this step: `lt_logits`, `as_mean`, `as_joint`, or `warmup`, the paper's schedule.

    `warmup` is `lt_logits` for steps 0 ... warmup_steps - 1, then `as_mean`. Raises KeyError for any other name.
    """
    if name == "warmup":
        name = "lt_logits" if step < warmup_steps else "as_mean"
    probes: dict[str, Callable[[], Probe]] = {
        "lt_logits": lambda: LastTokenProbe(conclude_ids),
        "as_mean": AnswerMeanProbe,
        "as_joint": AnswerJointProbe,
    }
    return probes[name]()


def _completion_positions(batch: CompletionBatch) -> Tensor:
    """(B, T) where completion token t stands in its row."""
    steps = torch.arange(batch.completion_ids.shape[1], device=batch.input_ids.device)
    return batch.prompt_lengths[:, None] + steps
