"""What every estimator of token importance is given and what it gives back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from oar.method.batch import CompletionBatch
from oar.method.forward.logprobs import Scores
from oar.method.probes import Probe


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """All an estimator may look at.

    scores: the policy's own, of the same rows as `batch`; seeds: B numbers: every random draw for a completion is made on the
    CPU from its own seed, so that how completions are batched never changes it; marks: ground truth (B, T) by name ("causal",
    "written", "error"), empty where the task knows none.
    """

    model: PreTrainedModel
    batch: CompletionBatch
    probe: Probe
    scores: Scores
    seeds: Sequence[int]
    marks: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Tensor) -> "CreditInputs":
        """The same for some of the completions (integer positions)."""
        marks = {name: mark[index] for name, mark in self.marks.items()}
        seeds = tuple(self.seeds[row] for row in index.tolist())
        return replace(self, batch=self.batch.rows(index), scores=self.scores.rows(index), seeds=seeds, marks=marks)


class ImportanceEstimator(Protocol):
    """Importance I_t >= 0 of each reasoning token: a constant of the loss, no gradient flows into the weights."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, 0 outside the reasoning mask. Every completion in `inputs.batch` has an answer span."""
        ...


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
