"""SERL: RLSD on the tokens that act, in hindsight of what the environment said (arXiv 2605.19447; docs/METHODS.md)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.importance.base import CreditInputs
from oar.method.importance.rlsd import SelfDistilledWeights

ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class ActionWeights:
    """The weights of `of` on action tokens, 1 elsewhere.

    actions: `answer`, the answer span; or the name of marks that the task knows: `causal`, the numbers and operators of a word
    problem's equations. (Assumption: the paper's actions are calls of an environment, which a reasoning task has none of.)
    """

    of: SelfDistilledWeights
    actions: str = "causal"
    gives: ClassVar[Literal["weights"]] = "weights"

    def __post_init__(self) -> None:
        if not self.actions:
            raise ConfigError("actions must be answer or the name of the task's marks, e.g. causal, but is empty.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T). Raises DataError where the task does not know the action tokens."""
        if self.actions == ANSWER:
            acting = inputs.batch.answer_mask
        else:
            acting = inputs.known_marks(self.actions, "choose method.estimator.actions=answer")
        return torch.where(acting, self.of(inputs), 1.0)
