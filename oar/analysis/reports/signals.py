"""The pages of experiments on token signals: a tidy table becomes a CSV, tables and pictures (docs/METHOD.md §7).

A tidy table has the columns model, split, signal, metric, value, low, high, n. What a page says stands in a template beside the
experiment that extends `signals.md.j2`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.methods import label, numbered
from oar.analysis.reports.page import table_lines, write_csv, write_page
from oar.statistics.intervals import CONFIDENCE

Where = tuple[str, str]  # (split, metric)
Pictures = Mapping[str, Callable[[pd.DataFrame, Path], None]]  # file to what draws the table into it
CHANCE = "uniform"  # the constant signal: ties are broken at random, so its values are what chance gives
BETWEEN = " - "  # stands in the name of a difference of two signals


def write_signals(
    name: str,
    template: Path,
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    pictures: Pictures,
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> None:
    """Write `<name>.csv`, `<name>.md`, the pictures and `provenance.json`, each atomically.

    facts: `Truth.facts` by model, and `drawn`; run: what the template names; signals: name to the overrides of conf/train that
    make it.
    """
    write_csv(table, folder / f"{name}.csv")
    for file, draw in pictures.items():
        draw(table, folder / file)
    made_by = {signal: list(how) for signal, how in signals.items()}
    write_page(
        folder / f"{name}.md",
        template,
        {**provenance, "run": dict(run), "models": facts, "signals": made_by},
        tables={model: table[table["model"] == model] for model in facts},
        scores=score_table,
        facts=facts,
        run=run,
        signals=signals,
    )


def score_table(
    rows: pd.DataFrame, heading: str, columns: Mapping[Where, str], form: str = ".2f", sign: str = ""
) -> str:
    """A line per signal that has any of the columns: value, interval; a blank where a metric is not defined; "" without lines.

    form: how numbers are written; sign: `+` for a table of the differences of signals, none for one of the signals themselves.
    """
    form = sign + form
    rows = rows[rows["signal"].str.contains(BETWEEN) == bool(sign)]
    text = {
        (row.signal, row.split, row.metric): f"{row.value:{form}} [{row.low:{form}}, {row.high:{form}}]"
        for row in rows.itertuples()
    }
    lines = [
        [f"`{signal}`", *cells]
        for signal in rows["signal"].unique()
        if any(cells := [text.get((signal, *key), "") for key in columns])
    ]
    return f"### {heading}\n\n{table_lines(['signal', *columns.values()], lines)}" if lines else ""


def draw_panels(table: pd.DataFrame, path: Path, *, panels: Mapping[Where, str]) -> None:
    """A panel per (split, metric), a line per signal, a mark per model with its interval; dotted: the constant signal."""
    single = table[~table["signal"].str.contains(BETWEEN)]
    single = single.assign(line=single["signal"].map(label), series="model " + single["model"])
    shown = {
        title: single[(single["split"] == split) & (single["metric"] == metric)]
        for (split, metric), title in panels.items()
    }
    constant = {title: rows.loc[rows["signal"] == CHANCE, "value"] for title, rows in shown.items()}
    draw_dots(
        shown,
        path,
        looks=numbered(list(single["series"].unique())),
        beside={title: values.mean() for title, values in constant.items() if len(values)},
        note=f"{CONFIDENCE:.0%} intervals: bootstrap over problems",
    )
