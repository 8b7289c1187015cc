"""The classes of a step's problems, and the coefficients of a KL term that are adapted to each (CRPO)."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from oar.learner.collect import GradedBatch
from oar.method.auxiliary.crpo import KlByClass, KlState, k3

_FILE = "kl_by_class.json"  # of a checkpoint


class AdaptedKl:
    """Holds what `KlByClass` has learned of each class: a problem's data set, and its level where it has one."""

    def __init__(self, how: KlByClass, checkpoint: Path | None = None) -> None:
        """Where a run goes on, from what `checkpoint` holds."""
        self.how = how
        self.state = KlState() if checkpoint is None else KlState(**json.loads((checkpoint / _FILE).read_text()))

    def save(self, checkpoint: Path) -> None:
        """Raises OSError."""
        (checkpoint / _FILE).write_text(json.dumps(asdict(self.state)))

    def coefficients(self, graded: GradedBatch) -> Tensor:
        """(B,) of the completions' classes."""
        found = [self.how.coefficient(self.state, name) for name in _classes(graded)]
        return torch.tensor(found, device=graded.rewards.device)

    def learn(self, graded: GradedBatch, old_logprobs: Tensor, reference_logprobs: Tensor) -> dict[str, float]:
        """From logprobs (B, T) of the policy before its update and of the starting model. Returns metrics."""
        rows = defaultdict(list)
        for row, name in enumerate(_classes(graded)):
            rows[name].append(row)
        for name, own in sorted(rows.items()):
            mask = graded.batch.completion_mask[own]
            reference = reference_logprobs[own][mask]
            kl = float(k3(old_logprobs[own][mask], reference).mean())
            self.state = self.how.adapted(self.state, name, len(own), -float(reference.mean()), kl)
        return {f"kl_coefficient/{name}": value for name, value in self.state.coefficients.items()}


def _classes(graded: GradedBatch) -> list[str]:
    return [
        problem.benchmark if problem.level is None else f"{problem.benchmark} {problem.level}"
        for problem in graded.problems
    ]
