"""The pages of experiments on token signals: a tidy table becomes a CSV, tables and pictures (docs/METHOD.md §7).

A tidy table has the columns model, split, signal, metric, value, low, high, n. What a page says stands in a template beside the
experiment that extends `signals.md.j2`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.page import table_lines, write_csv, write_page

Where = tuple[str, str]  # (split, metric)
CHANCE = "uniform"  # the constant signal: ties are broken at random, so its values are what chance gives
BETWEEN = " - "  # stands in the name of a difference of two signals


def write_signals(
    name: str,
    template: Path,
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    panels: Mapping[Where, str],
    more: Mapping[str, Callable[[pd.DataFrame, Path], None]],
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> None:
    """Write `<name>.csv`, `<name>.md`, `<name>.png`, the further pictures and `provenance.json`, each atomically.

    facts: `Truth.facts` by model, and `drawn`; panels: of the picture, each with its title; more: further pictures, file to what
    draws the table into that file; run: what the template names; signals: name to the overrides of conf/train that make it.
    """
    write_csv(table, folder / f"{name}.csv")
    draw_panels(table, panels, folder / f"{name}.png")
    for file, draw in more.items():
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


def draw_panels(table: pd.DataFrame, panels: Mapping[Where, str], path: Path) -> None:
    """A panel per (split, metric), a line per signal, a mark per model with its interval; dotted: the constant signal."""
    single = table[~table["signal"].str.contains(BETWEEN)].rename(columns={"signal": "line", "model": "series"})
    shown = {
        title: single[(single["split"] == split) & (single["metric"] == metric)]
        for (split, metric), title in panels.items()
    }
    constant = {title: rows.loc[rows["line"] == CHANCE, "value"] for title, rows in shown.items()}
    draw_dots(shown, path, beside={title: values.mean() for title, values in constant.items() if len(values)})
