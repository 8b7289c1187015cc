"""The pictures of oracle recall; its words are in page.md.j2."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.signals.recall import (
    ALL,
    AUC,
    CORRECT,
    ERROR_FIFTH,
    ERROR_PERCENTILE,
    RECALL,
    SHARE,
    WRONG,
)

TEMPLATE = Path(__file__).with_name("page.md.j2")
PANELS = {
    (CORRECT, AUC): "causal tokens: AUC,\ncorrect completions",
    (WRONG, AUC): "causal tokens: AUC,\nwrong completions",
    (ALL, RECALL): "causal tokens found among\nas many top tokens",
    (WRONG, ERROR_FIFTH): "first wrong token\nin the top fifth",
    (WRONG, ERROR_PERCENTILE): "first wrong token:\nmean percentile",
}


def draw_calibration(table: pd.DataFrame, path: Path) -> None:
    """A panel per signal: the share of causal tokens at each score of the gate; larger marks stand for more tokens."""
    rows = table[(table["split"] == ALL) & table["metric"].str.startswith(f"{SHARE}_")]
    rows = rows.assign(score=rows["metric"].str.removeprefix(f"{SHARE}_").astype(float) + 0.05)
    signals, models = list(rows["signal"].unique()), list(table["model"].unique())
    across = 4
    down = -(-len(signals) // across)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 0.8 + 2.3 * down), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
        for axes, signal in zip(panels, signals, strict=False):
            axes.plot([0, 1], [0, 1], color="#555555", linewidth=1, linestyle=":")
            for index, model in enumerate(models):
                line = rows[(rows["signal"] == signal) & (rows["model"] == model)].sort_values("score")
                colour = COLOURS[index + 1]
                axes.fill_between(line["score"], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
                axes.plot(line["score"], line["value"], color=colour, linewidth=1.2)
                size = 4 + 90 * line["n"] / max(1, line["n"].sum())
                axes.scatter(line["score"], line["value"], s=size, color=colour, marker=MARKERS[index + 1], label=model)
            axes.set_title(signal, fontsize=10, loc="left")
            axes.set_xlim(0, 1)
            axes.set_ylim(-0.03, 1.03)
        for axes in list(panels):  # what is left of the grid
            axes.set_visible(False)
        figure.supxlabel("the gate's score s (log1p of the importance, min-max over the completion)", fontsize=10)
        figure.supylabel("share of causal tokens", fontsize=10)
        handles = [Line2D([], [], color=COLOURS[index + 1], marker=MARKERS[index + 1]) for index in range(len(models))]
        figure.legend(handles, models, loc="outside upper right", ncols=len(models), frameon=False)
        save_png(figure, path)
