"""What every estimator of token importance is given and what it gives back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from oar.batch import CompletionBatch
from oar.probes import Probe
from oar.scoring import Scores


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """All an estimator may look at.

    scores: the policy's own, of the same rows as `batch`; seeds (B,): every random draw for a completion comes from its
    own seed, so that how completions are batched never changes it; marks: ground truth (B, T) by name ("causal",
    "written", "error"), empty where the task knows none.
    """

    model: PreTrainedModel
    batch: CompletionBatch
    probe: Probe
    scores: Scores
    seeds: Tensor
    marks: Mapping[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Tensor) -> "CreditInputs":
        """The same for some of the completions."""
        marks = {name: mark[index] for name, mark in self.marks.items()}
        batch, scores, seeds = self.batch.rows(index), self.scores.rows(index), self.seeds[index]
        return replace(self, batch=batch, scores=scores, seeds=seeds, marks=marks)


class ImportanceEstimator(Protocol):
    """Importance I_t >= 0 of each reasoning token: a constant of the loss, no gradient flows into the weights."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in float32, 0 outside the reasoning mask. Every completion in `inputs.batch` has an answer span."""
        ...


def chunks(row_lengths: Tensor, max_tokens: int) -> Iterator[Tensor]:
    """Indices of `row_lengths` (N,) in groups of at most `max_tokens` tokens, padding included; one row at least.

    Rows of like length go together, so that little is padded.
    """
    order = row_lengths.argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        longest = int(row_lengths[order[start]])
        count = max(1, max_tokens // max(1, longest))
        yield order[start : start + count]
        start += count
