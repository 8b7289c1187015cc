"""Token signals that are laid side by side on the same completions: what each says of a token, and how far two agree."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from oar.common.errors import DataError
from oar.statistics.attribution import mid_ranks

Kind = Literal["weight", "advantage", "amount", "ratio", "mark"]
RANKED: tuple[Kind, ...] = (
    "weight",
    "amount",
    "ratio",
    "mark",
)  # an advantage ranks tokens as its weight does, or the other way round


@dataclass(frozen=True, slots=True)
class TokenSignal:
    """A value for each token of N completions.

    kind: what the values are. weight: of mean 1 over the reasoning; advantage: signed; amount: from 0 up; ratio: 1 is no
    change; mark: 0 or 1. source: whose signal it is (the run as it was logged, or a model); about: one sentence on it.
    values: a list for the tokens of each completion; a weight has them for the reasoning tokens alone, and besides the
    importance behind it (empty where none was computed, or where there is no gate), and the importance at the gate's threshold
    of each completion (None where the gate has none).
    """

    name: str
    source: str
    kind: Kind
    about: str
    values: Sequence[Sequence[float]]
    importance: Sequence[Sequence[float]] = field(default=())
    thresholds: Sequence[float | None] = field(default=())

    def __post_init__(self) -> None:
        counts = [len(self.values), len(self.importance), len(self.thresholds)]
        if self.kind == "weight" and len(set(counts)) > 1:
            raise DataError(f"{self.name} must have importance and a threshold for each completion, but has {counts}.")

    def ranked(self, completion: int, reasoning_tokens: int) -> Sequence[float]:
        """What orders the reasoning tokens of a completion by this signal; of a gated weight its importance, without a floor."""
        behind = self.importance[completion] if self.kind == "weight" else []
        return (behind or self.values[completion])[:reasoning_tokens]


def rank_agreement(
    signals: Sequence[TokenSignal], reasoning_tokens: Sequence[int]
) -> dict[tuple[int, int], list[float | None]]:
    """Spearman's rank correlation of every two signals that rank tokens, over the reasoning tokens of each completion.

    By the places of the two in `signals`, the first below the second. None where a signal has one value throughout, and so
    no order.
    """
    ranked = [at for at, signal in enumerate(signals) if signal.kind in RANKED]
    pairs = [(one, other) for other in ranked for one in ranked if one < other]
    found: dict[tuple[int, int], list[float | None]] = {pair: [None] * len(reasoning_tokens) for pair in pairs}
    for row, count in enumerate(reasoning_tokens):
        values = {at: signals[at].ranked(row, count) for at in ranked}
        ordered = [at for at in ranked if len(values[at]) and np.ptp(values[at]) > 0]
        if len(ordered) < 2:
            continue
        table = np.corrcoef([mid_ranks(values[at]) for at in ordered])
        for second, other in enumerate(ordered):
            for first, one in enumerate(ordered[:second]):
                found[one, other][row] = float(table[first, second])
    return found
