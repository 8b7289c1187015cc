"""The kit of all pictures: one width, one size of letters, and what several experiments draw: intervals and curves over steps.

Series come as `looks`: by name how each is called and drawn, in the order of the legend (oar/analysis/reports/methods.py). No
pyplot: no global state, no window.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar.analysis.reports.methods import METHOD, Look, looks_of
from oar.common.files import atomic_path
from oar.evaluation.evaluate import MEAN
from oar.statistics.intervals import CONFIDENCE

WIDTH = 10.0  # inches, of every picture
SHOWN, LETTER = 830, 11  # pixels: a page on GitHub shows a picture so wide, and its letters then are so high
POINTS = LETTER * WIDTH * 72 / SHOWN
DPI = 150
QUIET = "#555555"  # lines that are no series: chance, the reference
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "font.size": POINTS,
    # Every text has this one size.
    **dict.fromkeys(("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"), POINTS),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize", "figure.titlesize", "figure.labelsize"), POINTS),
    "lines.markersize": 5,
}
LEGEND_LETTERS = 110  # of the entries in one row of a legend: so many are as wide as a picture
THICK = f"thin: {CONFIDENCE:.0%} interval to judge by, over seeds and problems; thick: of its bootstrap alone"
FAR = 3.0  # of the median reach of the intervals: a difference beyond is not drawn to scale
SMOOTHING = 9  # training steps of the running mean: one batch is noisy, an evaluation is not
# metric of metrics.jsonl: title of its panel, steps of the running mean
CURVES = {
    "eval/mean/avg@1": ("accuracy on the curve set, avg@1, mean of tiers (%)", 1),
    "train/reward_mean": (f"training reward, running mean of {SMOOTHING} steps", SMOOTHING),
    "train/entropy": (f"policy entropy (nats per token), running mean of {SMOOTHING} steps", SMOOTHING),
    "weights/ess_ratio": (f"ESS ratio of the weights (1: uniform), running mean of {SMOOTHING} steps", SMOOTHING),
}


@contextmanager
def picture(path: Path, height: float) -> Iterator[Figure]:
    """A figure WIDTH inches wide to draw in, in the house's style; it is saved at the end."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure
        save_png(figure, path)


def save_png(figure: Figure, path: Path) -> None:
    """The figure as a PNG file, written atomically, without the name of the program that made it."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Software": None})


def panels(figure: Figure, titles: Sequence[str], columns: int, **shared: Any) -> list[Axes]:
    """A panel for each title, so many beside each other; places that are left over stay empty, ticks stand above them."""
    columns = min(columns, len(titles))
    grid = figure.subplots(-(-len(titles) // columns), columns, squeeze=False, **shared)
    axes = list(grid.flat)
    for one, title in zip(axes, titles, strict=False):
        one.set_title(title)
    for at in range(len(titles), len(axes)):
        axes[at].remove()
        axes[at - columns].tick_params(labelbottom=True)
    return axes[: len(titles)]


def legend_below(figure: Figure, named: Mapping[str, Any], title: str = "") -> None:
    """One legend for all panels below them, in as many rows as it needs."""
    columns = max(1, LEGEND_LETTERS // (6 + max(map(len, named), default=0)))
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(columns, len(named) or 1)}
    figure.legend(named.values(), named.keys(), title=title or None, **place)


def series_of(axes: Sequence[Axes], looks: Mapping[str, Look]) -> dict[str, Any]:
    """By label what stands for each series in a legend, in the order of `looks`."""
    drawn = {text: line for one in axes for line, text in zip(*one.get_legend_handles_labels(), strict=True)}
    return {one.label: drawn[one.label] for one in looks.values() if one.label in drawn}


def style(of: Look) -> dict[str, Any]:
    """For matplotlib: colour and marker, the marker of a control or an oracle hollow."""
    return {"color": of.colour, "marker": of.marker} | ({} if of.kind == METHOD else {"markerfacecolor": "white"})


def dash(of: Look) -> str:
    """The line of a control or an oracle is dashed."""
    return "-" if of.kind == METHOD else "--"


def with_sampling(title: str, rows: pd.DataFrame) -> str:
    """`{k}` and `{temperature}` of a title, from the scores of one metric; benchmarks may differ in either."""
    own = rows[rows["benchmark"] != MEAN]
    k, temperature = own["k"].unique(), own["temperature"].unique()
    return title.format(
        k=k[0] if len(k) == 1 else "k", temperature=f"{temperature[0]:g}" if len(temperature) == 1 else "by benchmark"
    )


def curve_table(runs: Sequence[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """Long: series, run, step, metric, value of the metrics of CURVES. `runs`: (method, metrics by step) of each."""
    rows = [
        metrics[[name for name in CURVES if name in metrics]]
        .rename_axis("step")
        .reset_index()
        .melt("step", var_name="metric")
        .dropna()
        .assign(series=method, run=number)
        for number, (method, metrics) in enumerate(runs)
    ]
    return pd.concat(rows, ignore_index=True)


def draw_curves(table: pd.DataFrame, methods: Sequence[str], path: Path) -> None:
    """Learning curves with `lines`, a panel per metric of CURVES that was logged; `table`: see `curve_table`."""
    shown = {name: table[table["metric"] == name] for name in CURVES if name in set(table["metric"])}
    windows = {CURVES[name][0]: CURVES[name][1] for name in shown}
    draw_lines(
        dict(zip(windows, shown.values(), strict=True)), path, looks=looks_of(methods), columns=2, windows=windows
    )


def draw_lines(
    rows: Mapping[str, pd.DataFrame],
    path: Path,
    *,
    looks: Mapping[str, Look],
    columns: int,
    windows: Mapping[str, int] | None = None,
    sharey: bool = False,
    legend: str = "",
    height: float = 2.8,
    xlabel: str = "training step",
    logarithmic: bool = False,
) -> None:
    """A panel per title with `lines` over training steps, or over what `xlabel` says, so many beside each other, and one legend.

    `windows`: by title the steps of the running mean; `sharey`: the panels of a row have one scale; `legend`: its title;
    `height`: of a panel, in inches; `logarithmic`: of that scale, with a tick at each value that a panel has.
    """
    down = -(-len(rows) // columns)
    with picture(path, 0.8 + height * down) as figure:
        grid = panels(figure, list(rows), columns, sharey="row" if sharey else False)
        for axes, (title, own) in zip(grid, rows.items(), strict=True):
            lines(axes, own, looks=looks, window=(windows or {}).get(title, 1))
            if logarithmic:
                axes.set_xscale("log")
                axes.set_xticks([], minor=True)
                ticks = sorted(own["step"].unique())
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        for axes in grid[-columns:]:
            axes.set_xlabel(xlabel)
        legend_below(figure, series_of(grid, looks), legend)


def lines(axes: Axes, rows: pd.DataFrame, *, looks: Mapping[str, Look], window: int = 1) -> None:
    """Of each series the mean of its runs at the steps that all of them have, in a band from the lowest to the highest run.

    Runs are smoothed first, by a running mean over `window` steps. rows: `series`, `run`, step, value; where `marked` is
    there and true, a cross stands.
    """
    for name, own in rows.groupby("series", sort=False):
        of, runs = looks[str(name)], own.pivot(index="step", columns="run", values="value")
        runs = runs.rolling(window, center=True, min_periods=1).mean().where(runs.notna())
        mean = runs.dropna().mean(axis=1)
        if runs.shape[1] > 1:
            axes.fill_between(runs.index, runs.min(axis=1), runs.max(axis=1), color=of.colour, alpha=0.2, linewidth=0)
        marks: dict[str, Any] = {"markevery": max(1, len(mean) // 8), "linestyle": dash(of)}
        axes.plot(mean, linewidth=1.8, label=of.label, **style(of), **marks)
    if "marked" in rows:
        crosses = rows[rows["marked"]]
        axes.plot(crosses["step"], crosses["value"], "x", color="#CC0000", markersize=9, markeredgewidth=2)


def draw_dots(
    rows: Mapping[str, pd.DataFrame],
    path: Path,
    *,
    looks: Mapping[str, Look],
    columns: int = 3,
    beside: Mapping[str, float] | None = None,
    least: float | None = None,
    xlabel: Mapping[str, str] | None = None,
    note: str = "",
) -> None:
    """A panel per title with `dots`; those beside each other share their lines. `beside`: by title where one has its dotted line.

    Several series on a line have one legend; where each line is a series, lines stand in the order of `looks`. `least`: where
    every axis begins at the latest, and where a line without a value has a cross; `xlabel`: by title; `note`: above them all.
    """
    of_all = pd.concat(rows.values())
    together = of_all["series"].nunique() if of_all.groupby("line")["series"].nunique().max() > 1 else 1
    if together == 1:  # no panel has all lines
        of_all = of_all.sort_values("series", key=lambda names: names.map(list(looks).index), kind="stable")
    order, titles = list(dict.fromkeys(of_all["line"])), list(rows)
    rows_of = [titles[start : start + columns] for start in range(0, len(titles), columns)]
    known = [{line for title in row for line in rows[title]["line"]} for row in rows_of]
    lines_of = {
        title: [line for line in order if line in there]
        for row, there in zip(rows_of, known, strict=True)
        for title in row
    }
    heights = [0.8 + (0.26 + 0.09 * (together - 1)) * len(there) for there in known]
    with picture(path, 0.9 + sum(heights)) as figure:
        grid = panels(figure, titles, columns, sharey="row", gridspec_kw={"height_ratios": heights})
        for axes, (title, own) in zip(grid, rows.items(), strict=True):
            lines = lines_of[title]
            dots(axes, own, lines=lines, looks=looks, beside=(beside or {}).get(title))
            if least is not None:
                without = [float(lines.index(line)) for line in own.loc[own["value"].isna(), "line"]]
                axes.plot([least] * len(without), without, "x", color=QUIET)
                axes.update_datalim([(least, 0.0)])
                axes.autoscale_view(scaley=False)
            axes.set_xlabel((xlabel or {}).get(title, ""))
        if together > 1:
            legend_below(figure, series_of(grid, looks))
        if note:
            figure.suptitle(note)


def dots(
    axes: Axes, rows: pd.DataFrame, *, lines: Sequence[str], looks: Mapping[str, Look], beside: float | None = None
) -> None:
    """Values with their intervals, a line for each name of `lines`, from the top.

    rows: `line`, `series`, value, low, high; with bootstrap_low and bootstrap_high that interval is drawn thick in the other.
    `looks`: of the series; where a line has several, they stand below each other in this order. `beside`: where a dotted line
    stands. A difference that is far from all others stands as an arrow with its number at the edge, so that it does not
    squeeze them, and an interval that goes on beyond the edge has an arrow there.
    """
    several = rows.groupby("line")["series"].nunique().max() > 1
    present = [name for name in looks if name in set(rows["series"])]
    edge = _edge(rows, beside)
    for row in rows.dropna(subset="value").to_dict("records"):
        height, of = float(lines.index(row["line"])), looks[row["series"]]
        if several:
            height += 0.7 * ((present.index(row["series"]) + 0.5) / len(present) - 0.5)
        if abs(row["value"]) > edge:
            _arrow(axes, row["value"], height, of.colour)
            continue
        low, high = max(row["low"], -edge), min(row["high"], edge)
        axes.hlines(height, low, high, color=of.colour, linewidth=1.2)
        for end, mark, beyond in ((low, "<", row["low"] < low), (high, ">", row["high"] > high)):
            if beyond:
                axes.plot(end, height, mark, color=of.colour, markersize=4)
        if "bootstrap_low" in row:
            low, high = max(row["bootstrap_low"], -edge), min(row["bootstrap_high"], edge)
            axes.hlines(height, low, high, color=of.colour, linewidth=2.8)
        axes.plot(row["value"], height, linestyle="", label=of.label, **style(of))
    if beside is not None:
        axes.axvline(beside, color=QUIET, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(lines)), lines)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _edge(rows: pd.DataFrame, beside: float | None) -> float:
    """How far differences from 0 are drawn to scale; all are where there are none but near ones."""
    if beside != 0 or "bootstrap_low" not in rows:
        return math.inf
    edge = FAR * rows[["bootstrap_low", "bootstrap_high"]].abs().max(axis=1).median()
    return math.inf if math.isnan(edge) else edge


def _arrow(axes: Axes, value: float, height: float, colour: str) -> None:
    place, text = (0.01, f"◂ {value:+.1f}") if value < 0 else (0.99, f"{value:+.1f} ▸")
    side = "left" if value < 0 else "right"
    placed: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": side, "va": "center"}
    axes.text(place, height, text, color=colour, **placed)
