"""The pictures of oracle recall; its words are in page.md.j2."""

from functools import partial
from pathlib import Path

import pandas as pd

from oar.analysis.reports.figures import QUIET, legend_below, panels, picture, series_of, style
from oar.analysis.reports.methods import label, numbered
from oar.analysis.reports.signals import Pictures, draw_panels
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
COLUMNS = 4


def draw_calibration(table: pd.DataFrame, path: Path) -> None:
    """A panel per signal: the share of causal tokens at each score of the gate; larger marks stand for more tokens."""
    rows = table[(table["split"] == ALL) & table["metric"].str.startswith(f"{SHARE}_")]
    rows = rows.assign(score=rows["metric"].str.removeprefix(f"{SHARE}_").astype(float) + 0.05)
    signals, models = list(rows["signal"].unique()), numbered(list(table["model"].unique()))
    down = -(-len(signals) // COLUMNS)
    with picture(path, 1.1 + 1.9 * down) as figure:
        grid = panels(figure, [label(signal) for signal in signals], COLUMNS, sharex=True, sharey=True)
        for axes, signal in zip(grid, signals, strict=True):
            axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=":")
            for model, look in models.items():
                line = rows[(rows["signal"] == signal) & (rows["model"] == model)].sort_values("score")
                axes.fill_between(line["score"], line["low"], line["high"], color=look.colour, alpha=0.2, linewidth=0)
                axes.plot(
                    line["score"], line["value"], linewidth=1.2, markersize=0, label=f"model {model}", **style(look)
                )
                size = 4 + 90 * line["n"] / max(1, line["n"].sum())
                axes.scatter(line["score"], line["value"], s=size, color=look.colour, marker=look.marker)
            axes.set_xlim(0, 1)
            axes.set_ylim(-0.03, 1.03)
        figure.suptitle(
            "x: the gate's score s (log1p of the importance, min-max over the completion); larger marks: more tokens"
        )
        figure.supylabel("share of causal tokens")
        shown = {name: look._replace(label=f"model {name}") for name, look in models.items()}
        legend_below(figure, series_of(grid, shown))


PICTURES: Pictures = {"recall.png": partial(draw_panels, panels=PANELS), "calibration.png": draw_calibration}
