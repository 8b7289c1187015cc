"""What every estimator of token importance is given and what it gives back."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.batch import CompletionBatch
from oar.probes import Probe


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """All an estimator may look at. entropy (B, T) is the policy's; `generator` feeds every random draw."""

    model: PreTrainedModel
    batch: CompletionBatch
    probe: Probe
    entropy: Tensor
    generator: torch.Generator

    def rows(self, index: Tensor) -> "CreditInputs":
        """The same for some of the completions."""
        return replace(self, batch=self.batch.rows(index), entropy=self.entropy[index])


class ImportanceEstimator(Protocol):
    """Importance I_t >= 0 of each reasoning token: a constant of the loss, no gradient flows into the weights."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T), 0 outside the reasoning mask. Every completion in `inputs.batch` has an answer span."""
        ...


def chunks(row_lengths: Tensor, max_tokens: int, order_by: Tensor | None = None) -> Iterator[Tensor]:
    """Indices of `row_lengths` (N,) in groups of at most `max_tokens` tokens, padding included; one row at least.

    Rows of like `order_by` (by default their length) go together, so that little is padded.
    """
    order = (row_lengths if order_by is None else order_by).argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        longest = int(row_lengths[order[start:]].max())
        count = max(1, max_tokens // max(1, longest))
        yield order[start : start + count]
        start += count
