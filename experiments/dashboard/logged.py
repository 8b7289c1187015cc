"""The runs of a dashboard's page: where they lie, and what they have logged so far."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from experiments.dashboard.lines import METHOD
from experiments.dashboard.panels import SECONDS
from oar.common.errors import ConfigError, DataError
from oar.config.saved import saved_config
from oar.runs.folder import Run, has_logged
from oar.runs.tracking import METRICS, TIMINGS

SETTINGS = "config.yaml"


@dataclass(frozen=True)
class Logged:
    """A run, finished or not: its settings, and every metric under the name it has in W&B."""

    run: Run
    config: Mapping[str, Any]
    metrics: Mapping[str, pd.Series]  # by step, without undefined values

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.run.folder.resolve().name

    @property
    def last_step(self) -> int:
        """The last one with a metric; 0 where there is none."""
        return int(max((curve.index.max() for curve in self.metrics.values() if len(curve)), default=0))

    @property
    def finished(self) -> bool:
        """Whether the final evaluation is there."""
        return (self.run.folder / "evaluation.json").exists()


def find_runs(places: Sequence[str | Path]) -> list[Path]:
    """Run folders among `places` and below them: a run, a table's folder with its cells, a sweep, or a folder of such.

    Raises ConfigError where there is none.
    """
    found = []
    for place in map(Path, places):
        if not place.is_dir():
            raise ConfigError(f"runs must name folders, but {place} is none: change runs.")
        for folder, below, files in os.walk(place):
            below.sort()
            if {SETTINGS, METRICS} <= set(files):
                found.append(Path(folder))
                below.clear()
    if not found:
        raise ConfigError(
            f"runs must hold folders of training runs ({SETTINGS} and {METRICS}), but {', '.join(map(str, places))} holds none: "
            "train one (`make train`), or change runs."
        )
    return list({folder.resolve(): folder for folder in found}.values())


def read_logged(folder: Path) -> Logged:
    """What the run in `folder` has logged. Raises DataError where it has logged nothing yet, or is no training run's."""
    settings = saved_config(folder / SETTINGS)
    if OmegaConf.select(settings, METHOD) is None:
        raise DataError(
            f"{folder / SETTINGS} must be that of a training run, but names no {METHOD}: leave {folder} out of runs."
        )
    run = Run(folder, settings, {})
    frames = [run.metrics]
    if has_logged(folder, TIMINGS):
        frames.append(run.timings.add_prefix(SECONDS))
    metrics = {str(name): frame[name].dropna() for frame in frames for name in frame}
    return Logged(run, OmegaConf.to_container(settings), metrics)  # type: ignore[arg-type]
