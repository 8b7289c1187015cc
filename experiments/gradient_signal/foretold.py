"""Did the alignment of a gradient before training foretell the steps that training took?"""

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.gradient_signal.cosines import ALIGNMENT_RATIO
from oar.analysis.thresholds import STEPS, median_steps
from oar.common.errors import ConfigError
from oar.statistics.attribution import spearman

LEAST = 4  # arms of a condition, below which a rank correlation says nothing


def steps_of(folder: Path) -> pd.DataFrame:
    """The steps that runs of a study took. Raises ConfigError where the folder has none."""
    if not (folder / STEPS).is_file():
        raise ConfigError(f"foretold must be a folder with a {STEPS} (experiments.study), but is {folder}.")
    return pd.read_csv(folder / STEPS)


def foretold(table: pd.DataFrame, costs: pd.DataFrame, *, batch: int) -> list[tuple[str, int, float]]:
    """By condition how many arms both know, and the rank correlation of their alignment at `batch` with how soon they got there.

    table: `signal_table` with `condition`; costs: steps.csv of experiments.study, a row per run. An arm counts with
    its `median_steps`; one that does not get there comes after all that do. One whose alignment noise hides does not count.
    """
    aligned = table[(table["metric"] == ALIGNMENT_RATIO) & (table["batch"] == batch)]
    both = aligned.set_index(["condition", "arm"])[["value"]].join(median_steps(costs), how="inner")
    both = both.dropna(subset="value")
    late = both["steps"].where(np.isfinite(both["steps"]), 0).max() + 1
    both["steps"] = both["steps"].where(np.isfinite(both["steps"]), late)
    return [
        (str(condition), len(own), spearman(own["value"], -own["steps"]))
        for condition, own in both.groupby("condition", sort=False)
        if len(own) >= LEAST
    ]
