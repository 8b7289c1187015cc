"""Oracle recall from its table to files: `recall.csv`, `recall.md`, `recall.png`, `calibration.png`, `provenance.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.signals import Section, SignalPage, write_signals
from oar.analysis.signals.recall import (
    ALL,
    AUC,
    CALIBRATION,
    CORRECT,
    ERROR_FIFTH,
    ERROR_PERCENTILE,
    OVERLAP,
    RECALL,
    RECALL_FIFTH,
    SHARE,
    SPEARMAN,
    WRONG,
)

# (split, metric): how the column of a table or the panel of a picture is called
CAUSAL_COLUMNS = {
    (ALL, AUC): "AUC",
    (CORRECT, AUC): "AUC, correct",
    (WRONG, AUC): "AUC, wrong",
    (ALL, RECALL): "recall",
    (ALL, RECALL_FIFTH): "recall in top fifth",
    (ALL, CALIBRATION): "calibration error",
}
ERROR_COLUMNS = {
    (WRONG, ERROR_FIFTH): "first error in top fifth",
    (WRONG, ERROR_PERCENTILE): "percentile of the first error",
}
DIFFERENCE_COLUMNS = {
    (ALL, AUC): "AUC",
    (ALL, RECALL): "recall",
    (WRONG, ERROR_FIFTH): "first error in top fifth",
    (WRONG, ERROR_PERCENTILE): "percentile of the first error",
}
AGREEMENT_COLUMNS = {(ALL, SPEARMAN): "Spearman", (ALL, OVERLAP): "shared top fifth"}
PANELS = {
    (CORRECT, AUC): "causal tokens: AUC,\ncorrect completions",
    (WRONG, AUC): "causal tokens: AUC,\nwrong completions",
    (ALL, RECALL): "causal tokens found among\nas many top tokens",
    (WRONG, ERROR_FIFTH): "first wrong token\nin the top fifth",
    (WRONG, ERROR_PERCENTILE): "first wrong token:\nmean percentile",
}
QUESTION = """Which token signal finds the tokens that carry the computation, and which points at the token where a wrong
completion first goes wrong? On the embedded word problems both are known: the generator marks digits, operators and the
start number; replaying the problem finds the first wrong one (docs/METHOD.md §7.2, §7.6, §7.8; docs/EMBEDDED.md)."""
PAPER = """It and its reviewers ask for this experiment. Values that it may give and we do not hold are left blank: all of
them."""
READING = """Equal values are ordered at random, in expectation, so the constant signal `uniform` is chance to the digit;
the oracles are the ceiling. *AUC*: probability that a causal token has a larger signal than another one. *Recall*: share of
the causal tokens among as many tokens of largest signal. *Recall in top fifth*: share of the causal tokens in the top fifth
(the ceiling is below 1 where more than a fifth are causal). *Calibration error*: distance between the gate's score s
(log1p, min-max) and the share of causal tokens at that score. *First error in top fifth*, *percentile*: of wrong
completions whose first wrong token is in the reasoning. *Differences* are taken completion by completion, so their
intervals are narrower than the two signals' own. *Spearman*, *shared top fifth*: agreement with `{reference}`. `recall.csv`
has every metric for all, correct and wrong completions, recall@k for fixed k and the calibration curves with their
intervals."""


def write_recall(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> None:
    """Write the five files into `folder`, as `write_signals` does.

    table: `oar.analysis.signals.recall.recall_table` of every model with a column `model`; run: also `reference`, the
    signal that the others are compared with.
    """
    page = SignalPage(
        name="recall",
        title="Oracle recall",
        question=QUESTION,
        paper=PAPER,
        reading=READING,
        sections=[
            Section("Causal tokens", CAUSAL_COLUMNS),
            Section("First errors of wrong completions", ERROR_COLUMNS),
            Section("Differences", DIFFERENCE_COLUMNS, sign="+"),
            Section(f"Agreement with `{run['reference']}`", AGREEMENT_COLUMNS),
        ],
        panels=PANELS,
        caption="Recall and error location of every signal; the dotted line is chance.",
        more={
            "calibration.png": ("Calibration: the share of causal tokens at each score of the gate.", draw_calibration)
        },
    )
    write_signals(page, table, facts, folder, run=run, signals=signals, provenance=provenance)


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
