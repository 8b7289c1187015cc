"""Train one policy: `python -m experiments.train method=oar_g gating.tau=0.5`; `--cfg job` prints every key.

With `-m` every combination of comma-separated values is a run: `python -m experiments.train -m gating.tau=0.2,0.5 seed=1,2`.
"""

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from oar.command_line.entry import entry
from oar.config import TrainConfig, validated
from oar.runs.naming import named


@entry
def main(config: DictConfig) -> None:
    """Validate, say what will run, then supervise engine and learner until the run is over."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        from oar.launch.multirun import train_one_of_many

        train_one_of_many(config)
        return
    cfg = validated(config, TrainConfig)
    cfg = named(cfg, HydraConfig.get().overrides.task, group=cfg.profile)
    adapter = "" if cfg.model.lora is None else f" with an adapter of rank {cfg.model.lora.r}"
    print(
        f"{cfg.method.name} on {cfg.model.path or cfg.model.name}{adapter}, data {cfg.data.name}, {cfg.learner.steps} steps, "
        f"seed {cfg.seed}, profile {cfg.profile}: {cfg.output_dir}",
        flush=True,
    )
    from oar.launch.supervisor import train  # takes seconds (torch); a wrong configuration is told at once

    if code := train(cfg, Path(HydraConfig.get().runtime.output_dir)):
        sys.exit(code)


if __name__ == "__main__":
    main()
