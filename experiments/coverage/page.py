"""The page of `experiments.coverage.simulation`: how often each interval holds the true value, by setting and number of seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.coverage.simulation import INTERVALS, SETTINGS, error
from oar.analysis.reports.page import write_csv, write_page
from oar.statistics.intervals import CONFIDENCE

TEMPLATE = Path(__file__).with_name("page.md.j2")
NAMES = {
    "bootstrap": "bootstrap over problems and seeds",
    "student": "Student's over seeds",
    "both": "their hull: the verdict's",
}


def write_coverage(
    table: pd.DataFrame, folder: Path, *, simulations: int, resamples: int, provenance: Mapping[str, Any]
) -> Path:
    """`coverage.csv`, page and provenance; table: setting, seeds, interval, coverage. Returns the page."""
    write_csv(table, folder / "coverage.csv")
    lines = [
        [setting, seeds, *(f"{share:.1%}" for share in of.set_index("interval")["coverage"][list(INTERVALS)])]
        for (setting, seeds), of in table.groupby(["setting", "seeds"], sort=False)
    ]
    return write_page(
        folder / "coverage.md",
        TEMPLATE,
        provenance,
        simulations=simulations,
        resamples=resamples,
        confidence=f"{CONFIDENCE:.0%}",
        settings=SETTINGS,
        seeds=list(table["seeds"].unique()),
        error=f"{error(simulations):.1%}",
        names=NAMES,
        shares=lines,
    )
