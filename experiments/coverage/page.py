"""The page of `experiments.coverage.simulation`: how often each interval holds the true value, by setting and number of seeds."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from experiments.coverage.simulation import INTERVALS, SETTINGS, error
from oar.analysis.reports.page import StudyPage, table_lines, write_study
from oar.common.files import atomic_path
from oar.statistics.intervals import CONFIDENCE

NAMES = {
    "bootstrap": "bootstrap over problems and seeds",
    "student": "Student's over seeds",
    "both": "their hull: the verdict's",
}


def write_coverage(
    table: pd.DataFrame,
    folder: Path,
    *,
    simulations: int,
    resamples: int,
    repeat: str,
    provenance: Mapping[str, object],
) -> Path:
    """`coverage.csv`, page and provenance; table: setting, seeds, interval, coverage. Returns the page."""
    with atomic_path(folder / "coverage.csv") as path:
        table.to_csv(path, index=False)
    settings = "; ".join(
        f"*{one.name}*: {one.seed_noise:g} points beside {one.sampling_noise:.2f} of drawing {one.k} samples a problem"
        for one in SETTINGS
    )
    lines = [
        [str(setting), str(seeds), *(f"{share:.1%}" for share in of.set_index("interval")["coverage"][list(INTERVALS)])]
        for (setting, seeds), of in table.groupby(["setting", "seeds"], sort=False)
    ]
    page = StudyPage(
        name="coverage",
        title="How often does an interval hold the true value?",
        question=f"Do {CONFIDENCE:.0%} intervals over two to five training seeds hold the true difference as often as they say?",
        paper="Nothing: it gives single numbers.",
        ran=f"{simulations:,} simulated tables for every line, {resamples:,} draws for every bootstrap. Two arms that are the "
        "same, so the true difference is 0. Seed noise, the standard deviation of an arm's accuracy over seeds: "
        f"{settings}. The intervals are computed by the code that makes those of every page (oar/statistics/accuracy.py).",
        measured="Share of intervals that hold the true difference; the standard error of such a share is "
        f"{error(simulations):.1%}.\n\n"
        + table_lines(["setting", "seeds", *(NAMES[name] for name in INTERVALS)], lines),
        pictures={},
        repeat=repeat,
        provenance=provenance,
    )
    return write_study(page, folder)
