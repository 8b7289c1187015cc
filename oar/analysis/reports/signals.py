"""The pages of experiments on token signals: a tidy table becomes a CSV, tables and pictures (docs/METHOD.md §7).

A tidy table has the columns model, split, signal, metric, value, low, high, n.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import StudyPage, table_lines, write_study
from oar.common.files import atomic_path

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
RAN = """Held-out problems (split `{split}`, {problems} of each tier), {samples} completions of each problem and model,
drawn by the vLLM engine at the training temperature, seed {seed}; every signal computed on the same completions, those with
an answer span, with probe `{probe}`. Models: {models}.

All values are means over completions, or over tokens where that is said; in brackets the 95 % bootstrap interval over
problems."""


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

    facts: `Truth.facts` by model, and `drawn`; run: what RAN names; signals: name to the overrides of conf/train that make it.
    """
    with atomic_path(folder / f"{page.name}.csv") as path:
        table.to_csv(path, index=False)
    draw_panels(table, page.panels, folder / f"{page.name}.png")
    for file, (_, draw) in page.more.items():
        draw(table, folder / file)
    parts = [facts_table(facts), f"**How to read it.** {page.reading.strip().format(**run)}"]
    for model in facts:
        rows = table[table["model"] == model]
        shown = [(section, score_table(rows, section)) for section in page.sections]
        parts += [f"## Model `{model}`", *(f"### {section.heading}\n\n{text}" for section, text in shown if text)]
    parts += ["## The signals\n\n" + signals_table(signals)]
    write_study(
        StudyPage(
            name=page.name,
            title=page.title,
            question=page.question,
            paper=page.paper,
            ran=RAN.format(**run),
            measured="\n\n".join(parts),
            pictures={f"{page.name}.png": page.caption, **{file: caption for file, (caption, _) in page.more.items()}},
            repeat=str(provenance["command"]),
            provenance={
                **provenance,
                "run": dict(run),
                "models": facts,
                "signals": {name: list(how) for name, how in signals.items()},
            },
        ),
        folder,
    )


def facts_table(facts: Mapping[str, Mapping[str, float]]) -> str:
    """What every metric is to be read against, a column per model."""
    return table_lines(["", *facts], [[name, *(f"{facts[m][key]:.4g}" for m in facts)] for key, name in FACTS.items()])


def signals_table(signals: Mapping[str, Sequence[str]]) -> str:
    """Which overrides of conf/train make each signal."""
    return table_lines(["signal", "made by"], [[f"`{name}`", f"`{' '.join(how)}`"] for name, how in signals.items()])


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
    drawn = pd.MultiIndex.from_frame(table[["split", "metric"]]).isin(list(panels))
    single = table[drawn & ~table["signal"].str.contains(BETWEEN)]
    signals, models = list(single["signal"].unique()), list(table["model"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.6 + 2.5 * len(panels), 1.6 + 0.33 * len(signals)), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, ((split, metric), title) in zip(grid, panels.items(), strict=True):
            rows = single[(single["split"] == split) & (single["metric"] == metric)]
            for index, model in enumerate(models):
                offset = (index - (len(models) - 1) / 2) * 0.3
                _draw_intervals(axes, rows[rows["model"] == model], signals, offset, index, model)
            constant = rows.loc[rows["signal"] == CHANCE, "value"]
            if len(constant):
                axes.axvline(constant.mean(), color="#555555", linewidth=1, linestyle=":")
            axes.set_title(title, fontsize=10, loc="left")
            # Shares and correlations fill their scale; amounts have their own.
            if 0.2 < rows["high"].max() <= 1:
                axes.set_xlim(min(-0.03, rows["low"].min() - 0.03), 1.03)
        grid[0].set_yticks(range(len(signals)), signals)
        grid[0].set_ylim(len(signals) - 0.5, -0.5)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(models), frameon=False)
        save_png(figure, path)


def _draw_intervals(
    axes: Axes, rows: pd.DataFrame, signals: Sequence[str], offset: float, index: int, label: str
) -> None:
    heights = [signals.index(signal) + offset for signal in rows["signal"]]
    axes.hlines(heights, rows["low"], rows["high"], color=COLOURS[index + 1], linewidth=1.2)
    axes.scatter(rows["value"], heights, s=22, color=COLOURS[index + 1], marker=MARKERS[index + 1], label=label)
