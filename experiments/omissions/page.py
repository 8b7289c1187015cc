"""The page of the mistakes: its table, its picture, and what its template shows of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.omissions.edits import EDITS
from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.methods import label, numbered
from oar.analysis.reports.page import write_csv, write_page
from oar.analysis.reports.signals import score_table
from oar.statistics.intervals import CONFIDENCE

TEMPLATE = Path(__file__).with_name("page.md.j2")
TABLE, PICTURE = "omissions.csv", "omissions.png"
TRUTH = "continuations"
COST, REWARD = "cost", "reward"  # of the truth
BLAMED, SHARE = "blamed", "share_of_blame"  # of every arm, as the two below
TOKEN_BELOW, SUM_BELOW = "token_below_right", "sum_below_right"
DRAWN = {TOKEN_BELOW: "below the right token", SHARE: "share of the blame"}


def write_omissions(table: pd.DataFrame, folder: Path, provenance: Mapping[str, Any]) -> Path:
    """Write the page, its table and its picture into `folder`; returns the page.

    table: COLUMNS and `condition`; of the provenance `omissions` is what the template names.
    """
    write_csv(table, folder / TABLE)
    draw_mistakes(table, folder / PICTURE)
    return write_page(
        folder / "omissions.md",
        TEMPLATE,
        provenance,
        tables=by_condition(table),
        scores=score_table,
        edits=EDITS,
        counts=table[table["metric"] == COST].set_index(["condition", "split"])["n"].to_dict(),
        run=provenance["omissions"],
    )


def draw_mistakes(table: pd.DataFrame, path: Path) -> None:
    """A row per condition, a line per arm, a mark per edit: how often it has less than the right token, and its blame."""
    rows = {
        f"{condition}: {heading}": own[own["metric"] == metric].assign(
            line=own["signal"].map(label), series=own["split"]
        )
        for condition, own in by_condition(table[table["signal"] != TRUTH]).items()
        for metric, heading in DRAWN.items()
    }
    draw_dots(
        rows,
        path,
        looks=numbered(list(EDITS)),
        columns=2,
        least=0.0,
        note=f"{CONFIDENCE:.0%} intervals: bootstrap over problems",
    )


def by_condition(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Its rows by condition, in order."""
    return {str(name): rows for name, rows in table.groupby("condition", sort=False)}
