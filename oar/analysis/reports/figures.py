"""The pictures of arms: accuracies, differences with their intervals, learning curves.

Colours are Okabe and Ito's, and every method has a marker of its own as well; controls and oracles are hollow and
dashed. No pyplot: no global state, no window.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oar.analysis.reports.methods import METHOD, kind
from oar.common.files import atomic_path
from oar.evaluation.evaluate import MEAN, METRICS
from oar.statistics.intervals import CONFIDENCE, mean_and_standard_error

COLOURS = ("#7f7f7f", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
MARKERS = ("s", "o", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 10,
}
FAR = 3.0  # of the median reach of the intervals: a difference beyond is not drawn to scale
# metric of metrics.jsonl: title of its panel, steps of the running mean (one batch is noisy, an evaluation is not)
CURVES = {
    "eval/mean/avg@1": ("accuracy on the curve set, avg@1, mean of tiers (%)", 1),
    "train/reward_mean": ("training reward, running mean of 9 steps", 9),
    "train/entropy": ("policy entropy (nats per token), running mean of 9 steps", 9),
    "weights/ess_ratio": ("ESS ratio of the token weights, running mean of 9 steps", 9),
}


def draw_table1(scores: pd.DataFrame, labels: Mapping[str, str], path: Path) -> None:
    """Dots per benchmark with the standard error over seeds, one panel per metric.

    `scores` is `experiments.table1.page.read_scores`; `labels` maps methods to names, in drawing order.
    """
    metrics = [metric for metric in METRICS if metric in set(scores["metric"])]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.0 + 3.4 * len(metrics)), layout="constrained")
        for axes, metric in zip(figure.subplots(len(metrics), 1, squeeze=False)[:, 0], metrics, strict=True):
            rows = scores[scores["metric"] == metric]
            _draw_dots(axes, rows, labels)
            axes.set_title(with_sampling(METRICS[metric], rows), loc="left")
        seeds = scores.groupby("method")["seed"].nunique()
        count = f"{seeds.min()}" if seeds.nunique() == 1 else f"{seeds.min()} to {seeds.max()}"
        bars = "; bars: standard error over seeds" if seeds.max() > 1 else ""
        figure.suptitle(f"Profile {scores['profile'].iloc[0]}, seeds per method: {count}{bars}", fontsize=11)
        save_png(figure, path)


def with_sampling(title: str, rows: pd.DataFrame) -> str:
    """`{k}` and `{temperature}` of a title, from the scores of one metric; benchmarks may differ in either."""
    own = rows[rows["benchmark"] != MEAN]
    k, temperature = own["k"].unique(), own["temperature"].unique()
    return title.format(
        k=k[0] if len(k) == 1 else "k", temperature=f"{temperature[0]:g}" if len(temperature) == 1 else "by benchmark"
    )


def draw_curves(runs: Sequence[tuple[str, pd.DataFrame]], labels: Mapping[str, str], path: Path) -> None:
    """Learning curves: thin lines are seeds as logged, the thick one their mean at the steps that all of them have.

    `runs`: (method, metrics by step) per trained cell. A method without a metric (GRPO has no weights) has no line.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 7), layout="constrained")
        shown: dict[str, Line2D] = {}
        for axes, (metric, (title, window)) in zip(figure.subplots(2, 2).flat, CURVES.items(), strict=True):
            for index, (method, name) in enumerate(labels.items()):
                curves = [run[metric].dropna() for of, run in runs if of == method and metric in run]
                if not curves:
                    continue
                style = {"color": COLOURS[index % len(COLOURS)], **_face(method)}
                for curve in curves:
                    axes.plot(curve.index, curve, linewidth=0.6, alpha=0.35, color=style["color"])
                mean = pd.concat(curves, axis=1, join="inner").mean(axis=1)
                mean = mean.rolling(window, center=True, min_periods=1).mean()
                style["linestyle"] = "-" if kind(method) == METHOD else "--"
                marks = {"marker": _marker(index), "markevery": max(1, len(mean) // 8), "markersize": 5}
                (shown[name],) = axes.plot(mean.index, mean, linewidth=2, **marks, **style)
            axes.set_title(title, loc="left", fontsize=10)
            axes.set_xlabel("training step")
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", frameon=False)
        save_png(figure, path)


def draw_forest(
    panels: Mapping[str, pd.DataFrame], path: Path, *, xlabel: str = "", plain: Collection[str] = ()
) -> None:
    """A panel per title, dots with their intervals; rows: name and height of the line, style, value and the ends of ENDS.

    Differences stand around a line at 0; `plain` panels are of something else. What the bootstrap alone says is drawn thick. A
    difference that is far from all others stands as an arrow with its number at the edge, so that it does not squeeze them, and
    an interval that goes on beyond the edge has an arrow there.
    """
    lines = pd.concat(panels.values()).drop_duplicates("height")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.4 + 0.3 * len(lines)), layout="constrained")
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, rows) in zip(grid, panels.items(), strict=True):
            edge = FAR * rows[["bootstrap_low", "bootstrap_high"]].abs().max(axis=1).median()
            edge = math.inf if title in plain or math.isnan(edge) else edge
            for row in rows.dropna(subset="value").to_dict("records"):
                _draw_interval(axes, row, edge)
            if title not in plain:
                axes.axvline(0.0, color="#555555", linewidth=1, linestyle=":")
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel(xlabel)
            axes.grid(visible=False, axis="y")
        grid[0].set_yticks(lines["height"], lines["name"])
        grid[0].set_ylim(lines["height"].max() + 0.7, -0.7)
        figure.supxlabel(f"thin: {CONFIDENCE:.0%} interval to judge by; thick: of its bootstrap alone", fontsize=9)
        save_png(figure, path)


def _draw_interval(axes: Axes, row: Mapping[Any, Any], edge: float) -> None:
    value, height, colour = row["value"], row["height"], COLOURS[row["style"] % len(COLOURS)]
    if abs(value) > edge:
        side = "left" if value < 0 else "right"
        axes.text(
            0.01 if value < 0 else 0.99,
            height,
            f"◂ {value:+.1f}" if value < 0 else f"{value:+.1f} ▸",
            transform=axes.get_yaxis_transform(),
            color=colour,
            horizontalalignment=side,
            verticalalignment="center",
        )
        return
    low, high = max(row["low"], -edge), min(row["high"], edge)
    axes.hlines(height, low, high, color=colour, linewidth=0.9)
    axes.hlines(height, row["bootstrap_low"], row["bootstrap_high"], color=colour, linewidth=2.8)
    for end, mark, beyond in ((low, "<", row["low"] < low), (high, ">", row["high"] > high)):
        if beyond:
            axes.plot(end, height, mark, color=colour, markersize=4)
    axes.plot(value, height, MARKERS[row["style"] % len(MARKERS)], color=colour, markersize=6)


def _draw_dots(axes: Axes, rows: pd.DataFrame, labels: Mapping[str, str]) -> None:
    benchmarks = [name for name in rows["benchmark"].unique() if name != MEAN] + [MEAN]
    width = 0.7 / len(labels)
    for index, (method, name) in enumerate(labels.items()):
        values = rows[rows["method"] == method].groupby("benchmark")["value"]
        summary = [mean_and_standard_error(values.get_group(benchmark)) for benchmark in benchmarks]
        offset = (index - (len(labels) - 1) / 2) * width
        axes.errorbar(
            [position + offset for position in range(len(benchmarks))],
            [mean for mean, _ in summary],
            yerr=[error or 0.0 for _, error in summary],  # one seed: no bar
            fmt=_marker(index),
            color=COLOURS[index % len(COLOURS)],
            **_face(method),
            markersize=5,
            capsize=3,
            label=name,
        )
    axes.axvline(len(benchmarks) - 1.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(benchmarks)), benchmarks)
    axes.set_xlim(-0.5, len(benchmarks) - 0.5)
    axes.set_ylabel("correct (%)")
    axes.grid(visible=False, axis="x")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _marker(index: int) -> str:
    """Shifted by one for each round of the colours: no two of 64 methods have both in common."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def _face(method: str) -> dict[str, Any]:
    return {} if kind(method) == METHOD else {"markerfacecolor": "none"}


def save_png(figure: Figure, path: Path) -> None:
    """The figure as a PNG file, written atomically, without the name of the program that made it."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png", metadata={"Software": None})
