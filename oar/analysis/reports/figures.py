"""The pictures of several experiments: values with their intervals, learning curves.

Colours are Okabe and Ito's, and every method has a marker of its own as well; controls and oracles are hollow and
dashed. No pyplot: no global state, no window.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oar.analysis.reports.methods import METHOD, kind, label
from oar.common.files import atomic_path
from oar.evaluation.evaluate import MEAN
from oar.statistics.intervals import CONFIDENCE

COLOURS = ("#7f7f7f", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("s", "o", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
}
THICK = f"thin: {CONFIDENCE:.0%} interval to judge by; thick: of its bootstrap alone"
DPI = 150
FAR = 3.0  # of the median reach of the intervals: a difference beyond is not drawn to scale
# metric of metrics.jsonl: title of its panel, steps of the running mean (one batch is noisy, an evaluation is not)
CURVES = {
    "eval/mean/avg@1": ("accuracy on the curve set, avg@1, mean of tiers (%)", 1),
    "train/reward_mean": ("training reward, running mean of 9 steps", 9),
    "train/entropy": ("policy entropy (nats per token), running mean of 9 steps", 9),
    "weights/ess_ratio": ("ESS ratio of the token weights, running mean of 9 steps", 9),
}


def with_sampling(title: str, rows: pd.DataFrame) -> str:
    """`{k}` and `{temperature}` of a title, from the scores of one metric; benchmarks may differ in either."""
    own = rows[rows["benchmark"] != MEAN]
    k, temperature = own["k"].unique(), own["temperature"].unique()
    return title.format(
        k=k[0] if len(k) == 1 else "k", temperature=f"{temperature[0]:g}" if len(temperature) == 1 else "by benchmark"
    )


def draw_curves(runs: Sequence[tuple[str, pd.DataFrame]], methods: Sequence[str], path: Path) -> None:
    """Learning curves with `lines`, a panel per metric of CURVES.

    `runs`: (method, metrics by step) of each. A method without a metric (GRPO has no weights) has no line.
    """
    panels, windows = {}, {}
    for metric, (title, windows[title]) in CURVES.items():
        curves = [
            run[metric].dropna().rename("value").rename_axis("step").reset_index().assign(series=method, run=number)
            for number, (method, run) in enumerate(runs)
            if metric in run
        ]
        panels[title] = pd.concat(curves) if curves else pd.DataFrame(columns=["series"])
    draw_lines(panels, path, series=methods, columns=2, size=(6.0, 3.5), windows=windows)


def draw_lines(
    panels: Mapping[str, pd.DataFrame],
    path: Path,
    *,
    series: Sequence[str],
    columns: int,
    size: tuple[float, float],
    windows: Mapping[str, int] | None = None,
    sharey: bool = False,
    legend: str = "",
) -> None:
    """A panel per title with `lines` over training steps, so many beside each other, each of `size` inches, and one legend.

    `windows`: by title the steps of the running mean; `sharey`: the panels of a row have one scale; `legend`: its title.
    """
    down = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * down), layout="constrained")
        grid = figure.subplots(down, columns, sharey="row" if sharey else False, squeeze=False)
        for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
            lines(axes, rows, series=series, window=(windows or {}).get(title, 1))
            axes.set_title(title, loc="left", fontsize=10)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[-1]:
            axes.set_xlabel("training step")
        known = {text: line for axes in grid.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
        names = [label(name) for name in series if label(name) in known]
        handles = [known[name] for name in names]
        figure.legend(handles, names, title=legend, loc="outside right upper", frameon=False)
        save_png(figure, path)


def lines(axes: Axes, rows: pd.DataFrame, *, series: Sequence[str], window: int = 1) -> None:
    """Thin lines are runs as they are, the thick one of a series is their mean at the steps that all of them have, smoothed.

    rows: `series`, `run`, step, value; where `marked` is there and true, a cross stands. `series` as in `dots`.
    """
    for name, own in rows.groupby("series", sort=False):
        look, runs = style(str(name), series), own.pivot(index="step", columns="run", values="value")
        for _, curve in runs.items():
            axes.plot(curve.dropna(), linewidth=0.6, alpha=0.35, color=look["color"])
        mean = runs.dropna().mean(axis=1).rolling(window, center=True, min_periods=1).mean()
        look |= {"linestyle": "-" if kind(str(name)) == METHOD else "--", "markevery": max(1, len(mean) // 8)}
        axes.plot(mean, linewidth=2, markersize=5, label=label(str(name)), **look)
    if "marked" in rows:
        crosses = rows[rows["marked"]]
        axes.plot(crosses["step"], crosses["value"], "x", color=COLOURS[5], markersize=9, markeredgewidth=2)


def draw_dots(
    panels: Mapping[str, pd.DataFrame],
    path: Path,
    *,
    series: Sequence[str] | None = None,
    beside: Mapping[str, float] | None = None,
    xlabel: str = "",
    note: str = "",
) -> None:
    """A panel per title with `dots`, which share their lines; `beside`: by title where a panel has its dotted line.

    Several series have one legend. `xlabel`: of every panel; `note`: above them all.
    """
    rows = pd.concat(panels.values())
    series = series or ["", *rows["series"].unique()]
    lines = list(dict.fromkeys(rows["line"]))
    together = rows["series"].nunique() if rows.groupby("line")["series"].nunique().max() > 1 else 1
    with mpl.rc_context(STYLE):
        size = (2.6 + max(2.5 * len(panels), 7.4), 1.4 + (0.3 + 0.07 * (together - 1)) * len(lines))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, own) in zip(grid, panels.items(), strict=True):
            dots(axes, own, lines=lines, series=series, beside=(beside or {}).get(title))
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel(xlabel)
        if together > 1:
            known = dict(zip(*reversed(grid[0].get_legend_handles_labels()), strict=True))
            figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=len(known), frameon=False)
        if note:
            figure.suptitle(note, fontsize=9)
        save_png(figure, path)


def dots(
    axes: Axes, rows: pd.DataFrame, *, lines: Sequence[str], series: Sequence[str], beside: float | None = None
) -> None:
    """Values with their intervals, a line for each name of `lines`, from the top.

    rows: `line`, `series`, value, low, high; with bootstrap_low and bootstrap_high that interval is drawn thick in the other.
    `series`: by its place there one has its colour and its mark; where a line has several, they stand below each other.
    `beside`: where a dotted line stands. A difference that is far from all others stands as an arrow with its number at the
    edge, so that it does not squeeze them, and an interval that goes on beyond the edge has an arrow there.
    """
    several = rows.groupby("line")["series"].nunique().max() > 1
    present = [name for name in series if name in set(rows["series"])]
    edge = _edge(rows, beside)
    for row in rows.dropna(subset="value").to_dict("records"):
        height, look = float(lines.index(row["line"])), style(row["series"], series)
        if several:
            height += 0.7 * ((present.index(row["series"]) + 0.5) / len(present) - 0.5)
        if abs(row["value"]) > edge:
            _arrow(axes, row["value"], height, look["color"])
            continue
        low, high = max(row["low"], -edge), min(row["high"], edge)
        axes.hlines(height, low, high, color=look["color"], linewidth=1.2)
        for end, mark, beyond in ((low, "<", row["low"] < low), (high, ">", row["high"] > high)):
            if beyond:
                axes.plot(end, height, mark, color=look["color"], markersize=4)
        if "bootstrap_low" in row:
            axes.hlines(height, row["bootstrap_low"], row["bootstrap_high"], color=look["color"], linewidth=2.8)
        axes.plot(row["value"], height, markersize=5, linestyle="", label=label(row["series"]), **look)
    if beside is not None:
        axes.axvline(beside, color="#555555", linewidth=1, linestyle=":")
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


def style(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and marker by the place among `names`: no two of 64 have both in common. Controls and oracles are hollow."""
    index, face = names.index(name), {} if kind(name) == METHOD else {"markerfacecolor": "white"}
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)],
    } | face


def save_png(figure: Figure, path: Path) -> None:
    """The figure as a PNG file, written atomically, without the name of the program that made it."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Software": None})
