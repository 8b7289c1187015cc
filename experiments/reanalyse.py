"""Committed results judged anew, without training: `python -m experiments.reanalyse`, after a change of the statistics."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from oar.config import validated
from oar.entry import entry
from oar.errors import ConfigError
from oar.provenance import ROOT, command, git_state
from oar.reanalysis import judge

REFERENCE = ROOT / "results" / "reference"


@dataclass
class ReanalyseConfig:
    """See conf/reanalyse.yaml."""

    folders: list[str]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ConfigError("folders must name at least one folder of results: folders=[results/embedded].")


@entry
def main(config: DictConfig) -> None:
    """Judge folder by folder."""
    cfg = validated(config, ReanalyseConfig)
    analysis = {"command": command(), **git_state(ROOT)}
    for folder in cfg.folders:
        judge(Path(folder), claims=REFERENCE, analysis=analysis)
        print(f"judged anew: {folder}", flush=True)


if __name__ == "__main__":
    main()
