"""The gate of a configuration."""

from functools import partial

from oar.config import GatingConfig
from oar.credit import Gate
from oar.gating import bilevel_weights


def make_gate(cfg: GatingConfig) -> Gate:
    """`bilevel_weights` with its parameters bound."""
    return partial(
        bilevel_weights,
        tau=cfg.tau,
        beta=cfg.beta,
        floor=cfg.floor,
        threshold=cfg.threshold,
        suppress=cfg.suppress,
        boost=cfg.boost,
    )
