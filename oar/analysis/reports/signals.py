"""The pages of experiments on token signals: a tidy table becomes a CSV, tables and pictures (docs/METHOD.md §7).

A tidy table has the columns model, split, signal, metric, value, low, high, n.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.page import table_lines, write_csv, write_page

Where = tuple[str, str]  # (split, metric)
CHANCE = "uniform"  # the constant signal: ties are broken at random, so its values are what chance gives
BETWEEN = " - "  # stands in the name of a difference of two signals
FACTS = {
    "drawn": "completions",
    "completions": "with an answer",
    "problems": "problems",
    "correct": "of them correct",
    "errors_located": "wrong, first error located in the reasoning",
    "reasoning_tokens": "reasoning tokens, mean",
    "causal_share": "share of causal tokens, mean",
}
TEMPLATE = Path(__file__).with_name("signals.md.j2")


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a page: a line per signal, a column per (split, metric).

    form: how numbers are written; sign: `+` for a table of the differences of signals, none for one of the signals themselves.
    """

    heading: str
    columns: Mapping[Where, str]
    form: str = ".2f"
    sign: str = ""


@dataclass(frozen=True, slots=True)
class SignalPage:
    """What an experiment on signals says besides its numbers.

    reading: how to read the tables, `{key}` standing for a value of the run; sections: the tables of each model; panels: of the
    picture, (split, metric) to its title; more: further pictures, file to its caption and to what draws the table into that
    file.
    """

    name: str
    title: str
    question: str
    paper: str
    reading: str
    sections: Sequence[Section]
    panels: Mapping[Where, str]
    caption: str
    more: Mapping[str, tuple[str, Callable[[pd.DataFrame, Path], None]]] = field(default_factory=dict)


def write_signals(
    page: SignalPage,
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> None:
    """Write `<name>.csv`, `<name>.md`, `<name>.png`, the further pictures and `provenance.json`, each atomically.

    facts: `Truth.facts` by model, and `drawn`; run: what the template names; signals: name to the overrides of
    conf/train that make it.
    """
    write_csv(table, folder / f"{page.name}.csv")
    draw_panels(table, page.panels, folder / f"{page.name}.png")
    for file, (_, draw) in page.more.items():
        draw(table, folder / file)
    made_by = {name: list(how) for name, how in signals.items()}
    write_page(
        folder / f"{page.name}.md",
        TEMPLATE,
        {**provenance, "run": dict(run), "models": facts, "signals": made_by},
        page=page,
        reading=page.reading.format(**run),
        table_of=dict(list(table.groupby("model"))),
        facts_table=facts_table,
        scores=score_table,
        facts=facts,
        run=run,
        signals=signals,
    )


def facts_table(facts: Mapping[str, Mapping[str, float]]) -> str:
    """What every metric is to be read against, a column per model."""
    return table_lines(["", *facts], [[name, *(f"{facts[m][key]:.4g}" for m in facts)] for key, name in FACTS.items()])


def score_table(rows: pd.DataFrame, section: Section) -> str:
    """A line per signal that has any of the columns: value, interval; a blank where a metric is not defined; "" without lines."""
    form = section.sign + section.form
    rows = rows[rows["signal"].str.contains(BETWEEN) == bool(section.sign)]
    text = {
        (row.signal, row.split, row.metric): f"{row.value:{form}} [{row.low:{form}}, {row.high:{form}}]"
        for row in rows.itertuples()
    }
    lines = [
        [f"`{signal}`", *cells]
        for signal in rows["signal"].unique()
        if any(cells := [text.get((signal, *key), "") for key in section.columns])
    ]
    return table_lines(["signal", *section.columns.values()], lines) if lines else ""


def draw_panels(table: pd.DataFrame, panels: Mapping[Where, str], path: Path) -> None:
    """A panel per (split, metric), a line per signal, a mark per model with its interval; dotted: the constant signal."""
    single = table[~table["signal"].str.contains(BETWEEN)].rename(columns={"signal": "line", "model": "series"})
    shown = {
        title: single[(single["split"] == split) & (single["metric"] == metric)]
        for (split, metric), title in panels.items()
    }
    constant = {title: rows.loc[rows["line"] == CHANCE, "value"] for title, rows in shown.items()}
    draw_dots(shown, path, beside={title: values.mean() for title, values in constant.items() if len(values)})
