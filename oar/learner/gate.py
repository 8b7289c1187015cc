"""The gate of a configuration."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from oar.config import GatingConfig
from oar.method.credit import Gate
from oar.method.gating import bilevel_weights, drifted_tau


def make_gate(cfg: GatingConfig) -> Gate:
    """`bilevel_weights` with its parameters bound, for one step: the gate of `released_drift` remembers what it has seen."""
    gate = partial(
        bilevel_weights,
        beta=cfg.beta,
        floor=cfg.floor,
        threshold=cfg.threshold,
        suppress=cfg.suppress,
        boost=cfg.boost,
    )
    return _Drift(gate, cfg.tau) if cfg.threshold == "released_drift" else partial(gate, tau=cfg.tau)


@dataclass(slots=True)
class _Drift:
    """Carries the level on which the next completion's threshold depends from call to call."""

    gate: partial[Tensor]
    tau: float

    def __call__(self, importance: Tensor, reasoning_mask: Tensor) -> Tensor:
        weights = self.gate(importance, reasoning_mask, tau=self.tau)
        self.tau = drifted_tau(importance, reasoning_mask, tau=self.tau)
        return weights
