"""A study from scores.csv, which has every run's accuracy, and the ends of the bootstrap in differences.csv."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.shared.committed_pages import read_page, replaced, write_page
from experiments.study.page import METRICS, differences_table, draw_forest, reading
from experiments.study.studies import compared, with_holm
from oar.common.errors import DataError
from oar.common.files import atomic_path
from oar.evaluation.evaluate import MEAN
from oar.statistics.intervals import PERCENT, estimate, student_interval


def judge_study(folder: Path, _claims: Path, provenance: Mapping[str, Any]) -> None:
    """differences.csv, forest.png, and the parts of the page that show differences."""
    scores, found = pd.read_csv(folder / "scores.csv"), pd.read_csv(folder / "differences.csv")
    # Older tables have the bootstrap's numbers alone, under the names of the final ones.
    old = {"low": "bootstrap_low", "high": "bootstrap_high", "p": "p_bootstrap"}
    found = found if set(old.values()) <= set(found.columns) else found.rename(columns=old)
    (reference,) = set(scores["arm"]) - set(found["arm"])
    values = scores[scores["benchmark"] == MEAN].set_index(["condition", "metric", "arm", "seed"])["value"].sort_index()
    rows = [_judged(row, values, reference) for row in found.to_dict("records")]
    table = with_holm(pd.DataFrame(rows)).astype({"seeds_needed": "Int64"})
    text = replaced(
        read_page(folder), "**How to read it.**", reading(table, reference).removeprefix("**How to read it.**")
    )
    for metric, title in METRICS.items():
        body = differences_table(table[table["metric"] == metric])
        text = replaced(text, f"## Differences: {title}\n\n", body)
    with atomic_path(folder / "differences.csv") as path:
        table.to_csv(path, index=False)
    draw_forest(table, folder / "forest.png", reference=reference)
    write_page(folder, text, provenance)


def _judged(row: Mapping[Any, Any], values: "pd.Series[float]", reference: str) -> dict[str, Any]:
    key = (row["condition"], row["metric"])
    pairs = pd.concat([values[(*key, row["arm"])], values[(*key, reference)]], axis=1, join="inner").to_numpy(
        np.float64
    )
    by_seed = pairs[:, 0] - pairs[:, 1]
    if not np.isclose(by_seed.mean(), row["difference"], atol=1e-6):
        raise DataError(
            f"scores.csv and differences.csv differ on {row['arm']} under {key}: they are not of one study."
        )
    student = student_interval(by_seed) if len(by_seed) > 1 else None
    found = estimate(
        float(by_seed.mean()), (row["bootstrap_low"], row["bootstrap_high"]), student, within=(-PERCENT, PERCENT)
    )
    named = {"condition": row["condition"], "metric": row["metric"], "arm": row["arm"]}
    return named | compared(found, by_seed, row["p_bootstrap"])
