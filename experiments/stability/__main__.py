"""What a sweep says: `python -m experiments.stability 'folders=[multirun/sweep_gating]' output_dir=results/sweep_gating`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.stability.gathering import gather
from experiments.stability.levels import compare_levels, deciding_keys
from experiments.stability.page import usual_reference, write_stability
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.config import validated


@dataclass
class StabilityConfig:
    """See conf/stability.yaml."""

    folders: list[str]
    keys: list[str] | None
    reference: list[Any] | None
    repeat: str | None
    output_dir: str

    def __post_init__(self) -> None:
        if not self.folders:
            raise ConfigError("folders must name at least one folder of runs: folders=[multirun/gating].")


@entry
def main(config: DictConfig) -> None:
    """Gather, compare, write."""
    cfg = validated(config, StabilityConfig)
    folder = Path(HydraConfig.get().runtime.output_dir)
    gathered = gather([Path(one) for one in cfg.folders])
    keys = deciding_keys(gathered) if cfg.keys is None else cfg.keys
    levels = compare_levels(gathered, keys, cfg.reference, usual=usual_reference(keys))
    page = write_stability(gathered, levels, folder, repeat=cfg.repeat)
    print(f"{len(gathered.finished)} of {len(gathered.runs)} runs have finished; written to {page.parent}: {page.name}")


if __name__ == "__main__":
    main()
