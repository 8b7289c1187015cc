"""How completions compare within their groups, as a configuration says."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from oar.config import TrainConfig
from oar.method.advantages import decoupled_advantages, group_advantages


def compared(cfg: TrainConfig, weights: Sequence[float], rewards: Tensor, streams: Tensor) -> Tensor:
    """Advantages (B,) of whole groups: by all that completions earn (B,), or by each reward term of it (B, S) with its weight."""
    by = partial(
        group_advantages,
        num_generations=cfg.learner.num_generations,
        divide_by_std=cfg.learner.divide_by_std,
        leave_one_out=cfg.learner.leave_one_out,
    )
    return decoupled_advantages(streams, weights, by) if cfg.method.decoupled_rewards else by(rewards)
