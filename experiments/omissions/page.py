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


def write_omissions(table: pd.DataFrame, folder: Path, provenance: Mapping[str, Any]) -> Path:
    """Write the page, its table and its picture into `folder`; returns the page.

    table: COLUMNS and `condition`; of the provenance `omissions` is what the template names.
    """
    write_csv(table, folder / TABLE)
    draw_shares(table, folder / PICTURE)
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


def draw_shares(table: pd.DataFrame, path: Path) -> None:
    """A panel per condition, a line per arm, a mark per edit: how much of the blame lies on the mistake."""
    shares = table[table["metric"] == SHARE]
    shares = shares.assign(line=shares["signal"].map(label), series=shares["split"])
    draw_dots(
        by_condition(shares),
        path,
        looks=numbered(list(EDITS)),
        columns=2,
        least=0.0,
        note=f"{CONFIDENCE:.0%} intervals: bootstrap over problems",
    )


def by_condition(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Its rows by condition, in order."""
    return {str(name): rows for name, rows in table.groupby("condition", sort=False)}
