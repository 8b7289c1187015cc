"""Oracle recall from its table to files: `recall.csv`, `recall.md`, `recall.png`, `calibration.png`, `provenance.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oar.files import atomic_path, write_text_atomic
from oar.recall import (
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
from oar.reports.figures import COLOURS, MARKERS, STYLE

CHANCE = "uniform"  # the constant signal: ties are broken at random, so its values are what chance gives
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
FACTS = {
    "drawn": "completions",
    "completions": "with an answer",
    "problems": "problems",
    "correct": "of them correct",
    "errors_located": "wrong, first error located in the reasoning",
    "reasoning_tokens": "reasoning tokens, mean",
    "causal_share": "share of causal tokens, mean",
}
INTRODUCTION = """# Oracle recall

**Question.** Which token signal finds the tokens that carry the computation, and which points at the token where a wrong
completion first goes wrong? On the embedded word problems both are known: the generator marks digits, operators and the start
number; replaying the problem finds the first wrong one (docs/METHOD.md §7.2, §7.6, §7.8; docs/EMBEDDED.md).

**What the paper says.** It and its reviewers ask for this experiment. Values that it may give and we do not hold are left blank:
all of them.

**What was run.** Held-out problems (split `{split}`, {problems} of each tier), {samples} completions of each problem and model,
drawn by the vLLM engine at the training temperature, seed {seed}; every signal computed on the same completions, those with an
answer span, with probe `{probe}`. Models: {models}.

All values are means over completions; in brackets the 95 % bootstrap interval over problems. Equal values are ordered at random,
in expectation, so the constant signal `{chance}` is chance to the digit; the oracles are the ceiling.
"""
READING = """**How to read it.** *AUC*: probability that a causal token has a larger signal than another one. *Recall*: share of
the causal tokens among as many tokens of largest signal. *Recall in top fifth*: share of the causal tokens in the top fifth (the
ceiling is below 1 where more than a fifth are causal). *Calibration error*: distance between the gate's score s (log1p, min-max)
and the share of causal tokens at that score. *First error in top fifth*, *percentile*: of wrong completions whose first wrong
token is in the reasoning. *Differences* are taken completion by completion, so their intervals are narrower than the
two signals' own. *Spearman*, *shared top fifth*: agreement with `{reference}`. `recall.csv` has every metric for all,
correct and wrong completions, recall@k for fixed k and the calibration curves with their intervals.
"""


def write_recall(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> None:
    """Write the five files into `folder`, each atomically.

    table: `oar.recall.recall_table` of every model with a column `model`; facts: `Truth.facts` by model, and
    `drawn`; run: split, problems, samples, seed, probe, reference, and `models`, a phrase on where they come from; signals:
    name to the overrides of conf/train that make it; provenance: `collect_provenance`.
    """
    with atomic_path(folder / "recall.csv") as path:
        table.to_csv(path, index=False)
    text = markdown(table, facts, run=run, signals=signals, provenance=provenance)
    write_text_atomic(folder / "recall.md", text)
    single = table[table["signal"].isin(list(signals))]
    draw_recall(single, folder / "recall.png")
    draw_calibration(single, folder / "calibration.png")
    record = {
        **provenance,
        "run": dict(run),
        "models": facts,
        "signals": {name: list(how) for name, how in signals.items()},
    }
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")


def markdown(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    *,
    run: Mapping[str, object],
    signals: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> str:
    """The text of recall.md."""
    models = list(facts)
    parts = [
        INTRODUCTION.format(chance=CHANCE, **run),
        _table(["", *models], [[name, *(f"{facts[m][key]:.4g}" for m in models)] for key, name in FACTS.items()]),
        READING.format(**run),
    ]
    for model in models:
        rows = table[table["model"] == model]
        single = rows[rows["signal"].isin(list(signals))]
        differences = rows[~rows["signal"].isin(list(signals))]
        parts += [
            f"## Model `{model}`",
            "### Causal tokens\n\n" + score_table(single, CAUSAL_COLUMNS),
            "### First errors of wrong completions\n\n" + score_table(single, ERROR_COLUMNS),
            "### Differences\n\n" + score_table(differences, DIFFERENCE_COLUMNS, sign="+") if len(differences) else "",
            f"### Agreement with `{run['reference']}`\n\n" + score_table(single, AGREEMENT_COLUMNS),
        ]
    parts += [
        "![recall and error location](recall.png)",
        "![calibration](calibration.png)",
        "## The signals\n\n"
        + _table(["signal", "made by"], [[f"`{n}`", f"`{' '.join(h)}`"] for n, h in signals.items()]),
        "## How to repeat it",
        f"`{provenance['command']}`, or `make recall`; what decides the numbers is in `provenance.json`.",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def score_table(rows: pd.DataFrame, columns: Mapping[tuple[str, str], str], *, sign: str = "") -> str:
    """A line per signal, a column per metric: value, interval; a blank where a metric is not defined."""
    text = {
        (row.signal, row.split, row.metric): f"{row.value:{sign}.2f} [{row.low:{sign}.2f}, {row.high:{sign}.2f}]"
        for row in rows.itertuples()
    }
    lines = []
    for signal in rows["signal"].unique():
        lines.append([f"`{signal}`", *(text.get((signal, *key), "") for key in columns)])
    return _table(["signal", *columns.values()], lines)


def draw_recall(table: pd.DataFrame, path: Path) -> None:
    """A panel per question, a line per signal, a mark per model with its interval; dotted: chance."""
    signals, models = list(table["signal"].unique()), list(table["model"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.6 + 2.5 * len(PANELS), 1.6 + 0.33 * len(signals)), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, ((split, metric), title) in zip(panels, PANELS.items(), strict=True):
            rows = table[(table["split"] == split) & (table["metric"] == metric)]
            for index, model in enumerate(models):
                offset = (index - (len(models) - 1) / 2) * 0.3
                _draw_intervals(axes, rows[rows["model"] == model], signals, offset, index, model)
            chance = rows.loc[rows["signal"] == CHANCE, "value"]
            if len(chance):
                axes.axvline(chance.mean(), color="#555555", linewidth=1, linestyle=":")
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlim(-0.03, 1.03)
        panels[0].set_yticks(range(len(signals)), signals)
        panels[0].set_ylim(len(signals) - 0.5, -0.5)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(models), frameon=False)
        _save(figure, path)


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
        _save(figure, path)


def _draw_intervals(
    axes: Axes, rows: pd.DataFrame, signals: Sequence[str], offset: float, index: int, label: str
) -> None:
    heights = [signals.index(signal) + offset for signal in rows["signal"]]
    axes.hlines(heights, rows["low"], rows["high"], color=COLOURS[index + 1], linewidth=1.2)
    axes.scatter(rows["value"], heights, s=22, color=COLOURS[index + 1], marker=MARKERS[index + 1], label=label)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _save(figure: Figure, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png", metadata={"Software": None})
