"""A tidy table of measurements as one of Markdown."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from oar.analysis.reports.page import table_lines

ENDS = (("_low", "_high"), ("_q1", "_q3"))  # of a metric's interval, or its quartiles


def metric_table(
    rows: pd.DataFrame,
    columns: Mapping[str, tuple[str, str]],
    *,
    by: str,
    spread: Collection[str],
    left_out: Sequence[str] = (),
) -> str:
    """A line per value of the column `by` (and blank ones for `left_out`), a column per metric that was measured.

    rows: also `metric`, value; columns: by metric its title and how it is written; spread: metrics that are shown with ENDS.
    """
    value = dict(zip(zip(rows[by], rows["metric"], strict=True), rows["value"], strict=True))
    shown = {metric: how for metric, how in columns.items() if metric in set(rows["metric"])}

    def cell(name: str, metric: str, form: str) -> str:
        if (name, metric) not in value:
            return ""
        text = format(value[name, metric], form)
        for low, high in ENDS if metric in spread else ():
            if (name, metric + low) in value:
                text += f" [{value[name, metric + low]:{form}}, {value[name, metric + high]:{form}}]"
        return text

    lines = [
        [f"`{name}`", *(cell(name, metric, form) for metric, (_, form) in shown.items())]
        for name in [*rows[by].unique(), *left_out]
    ]
    return table_lines(["", *(title for title, _ in shown.values())], lines)
