"""What a loss per token beside the policy's is given and what it gives back."""

from typing import Protocol

from torch import Tensor

from oar.method.importance.base import CreditInputs


class AuxiliaryLoss(Protocol):
    """A loss of each token, e.g. a divergence from a teacher; it is aggregated as the policy's loss is."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T), 0 where there is none. `inputs.scores` has the update's own forward, through which its gradient flows.

        Completions of advantage 0 are asked for as well: what has nothing to teach there gives 0.
        """
        ...
