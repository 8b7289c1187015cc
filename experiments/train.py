"""Train one policy: `python -m experiments.train method=oar_g gating.tau=0.5`; `--cfg job` prints every key.

With `-m` every combination of comma-separated values is a run: `python -m experiments.train -m gating.tau=0.2,0.5 seed=1,2`.
"""

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from oar.cli import explain_errors, terminable
from oar.config import TrainConfig, validated


@hydra.main(version_base=None, config_path="../conf", config_name="train")
def main(config: DictConfig) -> None:
    """Validate, then supervise engine and learner until the run is over."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        from oar.sweep import train_one_of_many

        train_one_of_many(config)
        return
    with explain_errors():
        folder = Path(HydraConfig.get().runtime.output_dir)
        cfg = validated(config, TrainConfig)
        from oar.supervisor import train  # takes seconds (torch); a wrong configuration is told at once

        code = train(cfg, folder)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    with explain_errors(), terminable():  # of a multirun, whose launcher then ends its processes
        main()
