"""Is a method's difference from GRPO, or from its own control, real, and how many seeds would show it?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.arms import NEEDED, differences
from oar.analysis.reports.methods import BASE, GRPO, OF_A_METHOD, kind
from oar.analysis.reports.page import rendered
from oar.evaluation.evaluate import MEAN
from oar.runs.folder import Run
from oar.statistics.intervals import CONFIDENCE, ENDS
from oar.statistics.power import POWER

OF_MEAN = ["sd", *NEEDED, "smallest_shown"]  # worked out for the mean over benchmarks alone
DIFFERENCES = [
    *("metric", "method", "kind", "against", "benchmark", "seeds", "problems", "difference"),
    *ENDS,
    *OF_MEAN,
]
TEMPLATE = Path(__file__).with_name("differences.md.j2")


def method_differences(runs: Sequence[Run], metrics: Sequence[str]) -> pd.DataFrame:
    """A row (DIFFERENCES) per metric, method and benchmark, the mean over benchmarks among them: the method minus GRPO, points.

    Behind them the same of each method minus its own control (`against`), where that was run. `runs`: each with its method as
    `arm`. What cannot be known (one seed, no scores of problems) is blank.
    """
    arms = dict.fromkeys(run.arm for run in runs if run.arm != BASE)
    pairs = [(arm, f"{arm}{control}") for arm in arms for control in OF_A_METHOD if f"{arm}{control}" in arms]
    tables = []
    for compared, against in ((list(arms), GRPO), *(([arm], control) for arm, control in pairs)):
        own = [run for run in runs if run.arm in (*compared, against)]
        tables.append(differences(own, against, metrics=metrics, each_benchmark=True).assign(against=against))
    table = pd.concat(tables, ignore_index=True)
    if table.empty:
        return pd.DataFrame(columns=DIFFERENCES)
    table = table.assign(method=table["arm"], kind=table["arm"].map(kind))[DIFFERENCES]
    table[OF_MEAN] = table[OF_MEAN].where(table["benchmark"] == MEAN)
    return table.astype(dict.fromkeys(("seeds", "problems", *NEEDED), "Int64"))


def differences_section(table: pd.DataFrame) -> str:
    """Markdown: what was compared, how to read it, a line per metric and method."""
    rows = table[table["benchmark"] == MEAN]
    return rendered(
        TEMPLATE,
        rows=rows,
        from_grpo=rows[rows["against"] == GRPO],
        from_control=rows[rows["against"] != GRPO],
        kinds=set(rows["kind"]),
        chance=len(rows) * (1 - CONFIDENCE),
        confidence=f"{CONFIDENCE:.0%}",
        level=f"{1 - CONFIDENCE:.0%}",
        power=f"{POWER:.0%}",
        one_seed=one_seed,
        needed=needed_text,
    )


def needed_text(row: Mapping[Any, Any]) -> str:
    """`seeds_needed` with its range, as "9 (4 to 310)"; blank where there is no spread to work it out from."""
    if pd.isna(row["sd"]):
        return ""
    one, low, high = ("more than 10,000" if pd.isna(row[name]) else f"{row[name]:,}" for name in NEEDED)
    return one if low == high else f"{one} ({low} to {high})"


def one_seed(row: Mapping[Any, Any]) -> str:
    """What must stand beside an interval that says nothing of other seeds; nothing where it does."""
    return " over problems, one seed" if row["interval_over"] == "problems, one seed" else ""
