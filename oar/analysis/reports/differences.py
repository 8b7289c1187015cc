"""Is a method's difference from GRPO real, and how many seeds would show it? The table of `oar.analysis.arms.differences`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from oar.analysis.arms import NEEDED, differences
from oar.analysis.reports.methods import BASE, CONTROL, GRPO, ORACLE, kind, label
from oar.analysis.reports.page import interval_text, table_lines
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
READING = f"""Each line is a method minus GRPO, percentage points of the mean over benchmarks, paired by training seed. The
{CONFIDENCE:.0%} interval to judge by covers the two beside it: a bootstrap that draws seeds and problems, where scores of
single problems were kept, and Student's, over seeds alone. Few seeds can make the first much too narrow (results/coverage) and
make the second very wide. An interval that holds 0 shows no difference, and one seed says nothing of other seeds.

*Seeds to show it*: how many seeds a paired two-sided test at {1 - CONFIDENCE:.0%} needs to find a true difference of the size
that was found, with a chance of {POWER:.0%}; in brackets the same at both ends of the {CONFIDENCE:.0%} interval of *sd over
seeds*, which few seeds hardly tell. *Smallest shown*: the smallest true difference that the seeds at hand find with that chance.
All of this is for the same problems: other problems add a spread of their own."""
MARKED = {
    CONTROL: "A *control* keeps the learner and takes from the credit what it is said to know: what it gains is not credit's.",
    ORACLE: "An *oracle* is told by the task which tokens matter; no method can know more.",
}
NO_CONTROL = "No control was run beside these methods (`methods=` names them)."


def differences_from_grpo(runs: Sequence[Run], metrics: Sequence[str]) -> pd.DataFrame:
    """A row (DIFFERENCES) per metric, method and benchmark, the mean over benchmarks among them: the method minus GRPO, points.

    `runs`: each with its method as `arm`. What cannot be known (one seed, no scores of problems) is blank.
    """
    methods = [run for run in runs if run.arm != BASE]
    table = differences(methods, GRPO, metrics=metrics, each_benchmark=True)
    if table.empty:
        return pd.DataFrame(columns=DIFFERENCES)
    table = table.assign(method=table["arm"], kind=table["arm"].map(kind), against=GRPO)[DIFFERENCES]
    table[OF_MEAN] = table[OF_MEAN].where(table["benchmark"] == MEAN)
    return table.astype(dict.fromkeys(("seeds", "problems", *NEEDED), "Int64"))


def differences_section(table: pd.DataFrame) -> str:
    """Markdown: what was compared, how to read it, a line per metric and method."""
    rows = table[table["benchmark"] == MEAN]
    lines = [
        [
            row["metric"],
            label(row["method"]),
            f"{row['difference']:+.1f}",
            interval_text(row["low"], row["high"]) + one_seed(row),
            interval_text(row["bootstrap_low"], row["bootstrap_high"]),
            interval_text(row["student_low"], row["student_high"]),
            "" if pd.isna(row["sd"]) else f"{row['sd']:.2f}",
            str(row["seeds"]),
            needed_text(row),
            "" if pd.isna(row["smallest_shown"]) else f"{row['smallest_shown']:.1f}",
        ]
        for row in rows.to_dict("records")
    ]
    header = ["metric", "", "minus GRPO", f"[{CONFIDENCE:.0%}]", "of problems and seeds", "of seeds alone"]
    header += ["sd over seeds", "seeds", "seeds to show it", "smallest shown"]
    return "\n\n".join(["## Differences from GRPO: are they real?", _reading(rows), table_lines(header, lines)])


def needed_text(row: Mapping[Any, Any]) -> str:
    """`seeds_needed` with its range, as "9 (4 to 310)"; blank where there is no spread to work it out from."""
    if pd.isna(row["sd"]):
        return ""
    one, low, high = ("more than 10,000" if pd.isna(row[name]) else f"{row[name]:,}" for name in NEEDED)
    return one if low == high else f"{one} ({low} to {high})"


def one_seed(row: Mapping[Any, Any]) -> str:
    """What must stand beside an interval that says nothing of other seeds; nothing where it does."""
    return " over problems, one seed" if row["interval_over"] == "problems, one seed" else ""


def _reading(rows: pd.DataFrame) -> str:
    kinds, tests = set(rows["kind"]), len(rows)
    marked = [text for of, text in MARKED.items() if of in kinds] or [NO_CONTROL]
    chance = f"""These are {tests} comparisons: were there no difference anywhere, about {tests * (1 - CONFIDENCE):.1f} intervals
would still leave 0 out."""
    return "\n\n".join([READING, " ".join([*marked, *([chance] if tests > 1 else [])])])
