"""What a run is called where runs are compared: by its method and by what was typed, as in `oar_g-tau0.4-seed1`."""

import re
from collections.abc import Sequence
from dataclasses import replace

from oar.config import TrainConfig

# What these begin does not change what a step computes: runs that differ in nothing else are seeds of one another.
SILENT = tuple(
    """
    seed output_dir resume tracking evaluation benchmark sync data.allow_contaminated allow_targets device
    learner.steps learner.checkpoint_every learner.keep_checkpoints learner.ranks learner.rank_timeout_s
    learner.activation_checkpointing rollout.url rollout.host rollout.port rollout.token_file rollout.servers
    rollout.tensor_parallel rollout.startup_timeout_s rollout.request_timeout_s rollout.restart rollout.max_restarts
    """.split()
)
LONGEST = 128  # letters of a name at W&B


def named(cfg: TrainConfig, overrides: Sequence[str], group: str) -> TrainConfig:
    """The settings with tracking.name and tracking.group filled in where they are null.

    overrides: of conf/train, as typed; group: of what the run belongs to, a sweep or a table.
    """
    tracking = cfg.tracking
    name = tracking.name or run_name(cfg, overrides)
    return replace(cfg, tracking=replace(tracking, name=name, group=tracking.group or group))


def run_name(cfg: TrainConfig, overrides: Sequence[str]) -> str:
    """`oar_g-tau0.4-seed1`: the method, each override that changes what a step computes, the seed.

    A run of no training steps is the base model's, whatever its method.
    """
    method = cfg.method.name if cfg.learner.steps else "base"
    told = [
        _told(text) for text in overrides if not text.lstrip("+~").startswith((*SILENT, "hydra", "method=", "profile="))
    ]
    seed = f"seed{cfg.seed}"
    return "-".join([method, *told])[: LONGEST - len(seed) - 1] + f"-{seed}"


def _told(override: str) -> str:
    """`tau0.4` of gating.tau=0.4, `boost_only` of gating=boost_only."""
    key, _, value = override.lstrip("+~").partition("=")
    plain = re.sub(r"[^\w.+-]+", "_", value).strip("_")
    return plain if plain[:1].isalpha() and plain not in ("true", "false", "null") else key.rpartition(".")[2] + plain
