"""Committed results judged anew by the statistics of today, without training: intervals, verdicts, and the pages that show them.

What was measured stays as it was, and so does where it came from; `analysis` in provenance.json says what judged it last. Raw
scores of single problems are committed for Table 1 alone; of other pages the ends of the bootstrap that was drawn from them are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from experiments.stability.reanalysis import judge_sweep
from experiments.study.ceilings import STEPS, judge_ceilings
from experiments.study.page import judge_study
from experiments.table1.page import judge_table1
from oar.command_line.entry import entry
from oar.common.errors import ConfigError, DataError
from oar.common.provenance import ROOT, command, git_state
from oar.config import validated

# by a file that only it has
KINDS = {"table1.csv": judge_table1, "levels.csv": judge_sweep, "scores.csv": judge_study, STEPS: judge_ceilings}


@dataclass
class ReanalyseConfig:
    """See conf/reanalyse.yaml."""

    folders: list[str]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ConfigError("folders must name at least one folder of results: folders=[results/table1].")


@entry
def main(config: DictConfig) -> None:
    """Judge folder by folder."""
    cfg = validated(config, ReanalyseConfig)
    analysis = {"command": command(), **git_state(ROOT)}
    for folder in cfg.folders:
        judge(Path(folder), analysis=analysis)
        print(f"judged anew: {folder}", flush=True)


def judge(folder: Path, *, analysis: Mapping[str, object]) -> None:
    """Write anew what follows from the measurements in `folder`.

    `analysis`: what judges, for provenance.json. Raises DataError where the folder holds no table whose statistics are known.
    """
    kind = next((of for name, of in KINDS.items() if (folder / name).is_file()), None)
    if kind is None:
        raise DataError(f"{folder} must hold one of {', '.join(KINDS)}, but has none: correct folders.")
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    kind(folder, provenance | {"analysis": dict(analysis)})


if __name__ == "__main__":
    main()
