"""How often intervals over few seeds hold the true value, simulated: `python -m experiments.coverage`. Trains nothing."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.coverage.page import write_coverage
from experiments.coverage.simulation import SETTINGS, coverage
from oar.command_line.entry import entry
from oar.common.errors import ConfigError
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated
from oar.config.checks import Positive


@dataclass
class CoverageConfig:
    """See conf/coverage.yaml."""

    seeds: list[int]
    simulations: Positive
    resamples: Positive
    seed: int
    output_dir: str

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 2:
            raise ConfigError(f"seeds must hold numbers of 2 or more, but is {self.seeds}.")


@entry
def main(config: DictConfig) -> None:
    """Simulate, write the page."""
    cfg = validated(config, CoverageConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    how = {"simulations": cfg.simulations, "resamples": cfg.resamples}
    rows = []
    for setting in SETTINGS:
        for seeds in cfg.seeds:
            shares = coverage(setting, seeds, **how, seed=cfg.seed)
            facts = {"setting": setting.name, "problems": setting.problems, "seed_noise": setting.seed_noise}
            rows += [{**facts, "seeds": seeds, "interval": name, "coverage": share} for name, share in shares.items()]
            print(f"{setting.name}, {seeds} seeds: {', '.join(f'{n} {s:.1%}' for n, s in shares.items())}", flush=True)
    provenance = collect_provenance(asdict(cfg), started=started, git=git)
    folder = Path(HydraConfig.get().runtime.output_dir)
    page = write_coverage(pd.DataFrame(rows), folder, **how, provenance=provenance)
    print(f"written to {page}")


if __name__ == "__main__":
    main()
