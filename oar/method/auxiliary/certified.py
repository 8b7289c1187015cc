"""The imitation term of MIG: a rollout's own tokens, where two gates certify it (arXiv 2602.01034; docs/METHODS.md)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.importance.base import CreditInputs
from oar.method.importance.mig import information_gains

GATES = ("format", "mig_positive")


@dataclass(frozen=True, slots=True)
class CertifiedCloning:
    """-weight x logprob of each token, of completions whose answer is right and that pass the second gate.

    gate: `format`, there is an answer span (abstract: "structural and factual"); `mig_positive`, the reasoning made the right
    answer likelier, which costs the scorings of `mig` once more (another reading of the paper).
    """

    weight: float = 0.1
    gate: str = "format"
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ConfigError(f"weight must be 0 or more, but is {self.weight}.")
        if self.gate not in GATES:
            raise ConfigError(f"gate must be one of {', '.join(GATES)}, but is {self.gate!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        certified = inputs.known_correct() & inputs.batch.has_answer
        index = certified.nonzero()[:, 0]
        if self.gate == "mig_positive" and len(index):
            with torch.no_grad():
                gains, _ = information_gains(inputs.rows(index), self.max_tokens_per_forward)
            certified = certified.index_put((index,), gains.sum(dim=1) > 0)
        kept = certified[:, None] & inputs.batch.completion_mask
        return -self.weight * inputs.scores.logprobs * kept
