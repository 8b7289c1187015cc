"""The weights of all ranks, gathered for the first one's push, which can fail at any point of it."""

from collections.abc import Iterator
from threading import Lock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.errors import SyncError
from oar.learner.distributed import Ranks
from oar.model.parameters import full_weights, take_part
from oar.rollout.sync import WeightSync


def push(sync: WeightSync, model: PreTrainedModel, version: int, ranks: Ranks) -> None:
    """Give the engine `model`'s weights under `version`; called on all ranks, of which the first one pushes.

    Nothing is gathered before the first rank has readied the engine and asks for a weight, and whatever becomes of the push,
    all ranks run the same collectives. Raises SyncError or EngineLostError on the first rank alone.
    """
    if ranks.count == 1:
        sync.push(model, version)
    elif not ranks.first:
        if ranks.agree(False):  # what the first rank says counts
            take_part(model)
    else:
        gathering = _Gathering(ranks)
        try:
            sync.push(model, version, gathering)
        finally:
            gathering.end()


class _Gathering:
    """The first rank's way through `full_weights`. A push may go it in a thread that it leaves behind when it fails."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._weights: Iterator[tuple[str, Tensor]] | None = None
        self._over, self._turn = False, Lock()

    def __call__(self, model: PreTrainedModel, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As `full_weights`; the other ranks begin with the first weight. Raises SyncError where the push is over."""
        while True:
            with self._turn:
                if self._over:
                    raise SyncError("the push that these weights are gathered for is over.")
                if self._weights is None:
                    self._weights = full_weights(model, dtype)
                    self._ranks.agree(True)
                named = next(self._weights, None)
            if named is None:
                return
            yield named

    def end(self) -> None:
        """Gather what is left of what was begun, or tell the other ranks that nothing will be."""
        with self._turn:
            self._over = True
            if self._weights is None:
                self._ranks.agree(False)
            else:
                for _ in self._weights:
                    pass
