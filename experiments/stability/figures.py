"""The pictures of a sweep: heat maps over two settings, dots over one, and what happened along the steps.

Every number of a heat map stands in its cell, every line has a marker: nothing hangs on colour alone.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from experiments.stability.gathering import LAST
from experiments.stability.levels import Levels, short
from oar.analysis.reports.figures import THICK, draw_dots, draw_lines, panels, picture
from oar.analysis.reports.methods import numbered
from oar.evaluation.evaluate import GREEDY_METRIC, SAMPLED_METRIC
from oar.runs.collapse import COLLAPSE_WINDOW
from oar.statistics.intervals import ENDS

MAP = "cividis"  # made for all kinds of colour vision
EMPTY = "#eeeeee"
LETTERS = 140  # of a line as wide as a picture
# What the colours of a map span at least, in its unit: small differences must not look like large ones.
SPAN = {SAMPLED_METRIC: 5.0, "entropy": 0.1, "ess_ratio": 0.2, "collapse_step": 10.0}
CURVES = {"entropy": "policy entropy (nats)", "ess_ratio": "ESS ratio of the weights", "reward": "training reward"}
IN_WORDS = {"gating.tau": "tau: level of the gate's threshold", "gating.beta": "beta: strength of the boost"}
Cell = Mapping[str, Any]


def draw_frontier(levels: Levels, path: Path) -> None:
    """Heat maps over two settings; the first runs along x. What is nearly the same at all levels is told in words above."""
    maps: dict[str, tuple[str, Callable[[Cell], str]]] = {
        SAMPLED_METRIC: (f"final accuracy, {SAMPLED_METRIC} (%)", _accuracy_text),
        "entropy": ("policy entropy at the end (nats)", lambda cell: f"{cell['entropy']:.3f}"),
        "ess_ratio": ("ESS ratio of the weights at the end", lambda cell: f"{cell['ess_ratio']:.2f}"),
        "collapse_step": ("step of the first collapse", _collapse_text),
    }
    rows = pd.DataFrame(levels.cells.values()).dropna(axis=1, how="all")  # GRPO has no weights
    alike = {
        column: rows[column].dropna().agg(["min", "max"])
        for column, span in SPAN.items()
        if column in rows and column != SAMPLED_METRIC and not rows[column].max() - rows[column].min() > span / 2
    }
    told = {
        column: (f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}") for column, (low, high) in alike.items()
    }
    collapsed = rows["collapsed"].sum()
    if not collapsed:
        told["collapse_step"] = f"none of {rows['begun'].sum()} runs collapsed"
    shown = {column: panel for column, panel in maps.items() if column in rows and column not in told}
    notes = ["framed: the reference; ▲ ▼: its interval leaves out the reference's accuracy, above or below"]
    if told:
        elsewhere = "; ".join(f"{maps[column][0]}: {text}" for column, text in told.items())
        notes += wrap(f"nearly the same at all levels: {elsewhere}", LETTERS)
    down = -(-len(shown) // 2)
    with picture(path, 0.6 + 0.2 * len(notes) + down * (0.9 + 0.5 * len(levels.values[1]))) as figure:
        for axes, (column, (_, text)) in zip(
            panels(figure, [title for title, _ in shown.values()], 2), shown.items(), strict=True
        ):
            _draw_map(axes, levels, column, text)
        figure.suptitle("\n".join(notes))


def draw_levels(levels: Levels, path: Path) -> None:
    """One setting: accuracy of each level, and the differences from the reference, each with its interval."""
    titles = {
        SAMPLED_METRIC: f"{SAMPLED_METRIC} (%)",
        f"difference {SAMPLED_METRIC}": f"{SAMPLED_METRIC}, difference (points)",
        f"difference {GREEDY_METRIC}": f"{GREEDY_METRIC} greedy, difference (points)",
    }
    lines = pd.DataFrame(levels.cells.values()).assign(line=list(map(str, levels.values[0])))
    lines["series"] = lines["line"]
    names = {
        title: {column: "value", **{f"{column} {end}".replace("_", " "): end for end in ENDS}}
        for column, title in titles.items()
        if column in lines  # one level has no difference
    }
    shown = {title: lines.rename(columns=new) for title, new in names.items()}
    beside = {title: 0.0 for title in shown if title != titles[SAMPLED_METRIC]}
    draw_dots(shown, path, looks=numbered(list(lines["line"])), beside=beside, note=THICK)


def draw_trajectories(metrics: pd.DataFrame, runs: pd.DataFrame, levels: Levels, path: Path) -> None:
    """A row of panels per curve and a column per value of the second setting; lines are values of the first."""
    first, *rest = levels.keys
    rows = metrics[metrics["step"] >= 1].sort_values("step").merge(runs[["run", "collapse_step"]], on="run")
    grid: dict[str, pd.DataFrame] = {}
    running = f"running mean of {COLLAPSE_WINDOW} steps"
    for name, title in CURVES.items():
        own = rows[rows["metric"] == LAST[name]]
        if own.empty:  # GRPO has no weights
            continue
        means = own.groupby("run")["value"].rolling(COLLAPSE_WINDOW, min_periods=1).mean().droplevel(0)
        own = own.assign(value=means, series=own[first].map(str), marked=own["step"] == own["collapse_step"])
        at = (
            {f"{title}, {short(rest[0])} {value},\n{running}": own[own[rest[0]] == value] for value in levels.values[1]}
            if rest
            else {}
        )
        grid |= at or {f"{title},\n{running}": own}
    draw_lines(
        grid,
        path,
        looks=numbered(list(map(str, levels.values[0]))),
        columns=len(levels.values[1]) if rest else len(CURVES),
        sharey=bool(rest),
        legend=short(first),
    )


def _draw_map(axes: Axes, levels: Levels, column: str, text: Callable[[Cell], str]) -> None:
    across, along = levels.values
    known = [float(row[column]) for row in levels.cells.values() if pd.notna(row[column])]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    span = max(high - low, SPAN[column])
    colours = mpl.colormaps[MAP]
    for (first, second), cell in levels.cells.items():
        x, y = across.index(first), along.index(second)
        filled = bool(pd.notna(cell[column]))
        place = 0.5 + (float(cell[column]) - (low + high) / 2) / span if filled else 0.5
        colour = colours(0.15 + 0.85 * place) if filled else EMPTY
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
        dark = filled and float(np.dot(colour[:3], (0.299, 0.587, 0.114))) < 0.5
        written = text(cell) if filled else _absent(cell, column)
        axes.text(x, y, written, ha="center", va="center", color="white" if dark else "black")
        if (first, second) == levels.reference:
            frame = Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, fill=False, edgecolor="black", linewidth=2)
            axes.add_patch(frame)
    axes.set_xlim(-0.5, len(across) - 0.5)
    axes.set_ylim(-0.5, len(along) - 0.5)
    axes.set_xticks(range(len(across)), list(map(str, across)))
    axes.set_yticks(range(len(along)), list(map(str, along)))
    axes.grid(visible=False)
    axes.set_xlabel(IN_WORDS.get(levels.keys[0], short(levels.keys[0])))
    axes.set_ylabel(IN_WORDS.get(levels.keys[1], short(levels.keys[1])))


def _accuracy_text(cell: Cell) -> str:
    low, high = (cell.get(f"difference {SAMPLED_METRIC} {end}") for end in ("low", "high"))
    mark = "" if low is None or pd.isna(low) else " ▲" if low > 0 else " ▼" if high < 0 else ""
    text, low = f"{cell[SAMPLED_METRIC]:.1f}{mark}", cell.get(f"{SAMPLED_METRIC} low")
    return text if low is None or pd.isna(low) else f"{text}\n[{low:.1f}, {cell[f'{SAMPLED_METRIC} high']:.1f}]"


def _absent(cell: Cell, column: str) -> str:
    return f"none of\n{cell['begun']} runs" if column == "collapse_step" and cell["begun"] else "no run\nfinished"


def _collapse_text(cell: Cell) -> str:
    return f"{cell['collapse_step']}\n({cell['collapsed']} of {cell['begun']} runs)"
