"""The page of the gradient's signal and noise: `gradient_signal.md`, `.csv`, three pictures, `provenance.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.gradient_signal.cosines import (
    ALIGNMENT,
    ALIGNMENT_RATIO,
    BEST,
    FACT,
    GAIN,
    GAIN_RATIO,
    NOISE_SHARE,
    SIGNAL_SHARE,
)
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import PAGE, table_lines, write_page
from oar.common.files import atomic_path

NAME = "gradient_signal"
QUESTION = """When can weighting tokens beat weighting them alike? Before any training: of a training batch's gradient, how much
points where the expected reward rises, and does a weighting raise that share?"""
PAPER = """It takes for granted that uniform credit dilutes the gradient, and reports better accuracy; it does not measure
the gradient. METHOD.md §7.9 asks for the regime in which oracle weights beat uniform ones."""
REASONING = """**Why it could pay, and when.** A token's part of the policy gradient is its advantage times the gradient of
its log-probability. Of a token that cannot move the answer that part is zero on average: noise alone. Leaving it out costs
nothing and takes its noise away. So weights pay (1) the more noise such tokens make: many of them, and freely chosen ones, since
a token that the policy is sure of has almost no gradient; and (2) the fewer groups a batch has, since noise falls with the batch
and what weights leave out of the signal does not. AdamW adds a third: it divides each parameter's step by the size of its
gradient, noise included, so less noise means longer steps in the right directions. Weights of mean 1 keep a completion's
advantage, but not the length of the gradient; AdamW takes that length out again, and with one update per batch no ratio leaves
1, so clipping plays no part here."""
READING = """**How to read it.** *Alignment*: expected cosine-like share of a batch's gradient along the gradient of the expected
reward, which is estimated without bias from the same completions (leave-one-out advantages, sum over tokens) and only compared
across different problems. *Ratio*: alignment divided by that of `{reference}`; above 1 the weights pay to first order, for one
step from this policy. *No end*: a batch so large that no noise is left; what is below 1 there is signal that the weights throw
away or move. *Gain*: percentage points of training reward that one AdamW step is expected to bring, to first order, at the
learning rate of the runs. `{best}` has one weight per class of token (causal digits and operators; the signs `=` and `.`; filler;
other words; marker and answer), chosen on the other half of the problems: what any credit assignment that knows only a token's
class could reach. In brackets 95 % intervals (jackknife over units of problems); many comparisons stand here, so one interval in
twenty misses by chance."""


def write_gradient_signal(
    table: pd.DataFrame,
    folder: Path,
    *,
    reference: str,
    judged: int,
    run: Mapping[str, object],
    provenance: Mapping[str, object],
) -> Path:
    """Write the page and its files into `folder`; returns the page.

    table: `experiments.gradient_signal.cosines.signal_table` of every condition, with `condition`, batches in problems,
    and rows of facts;
    judged: the batch that the shares and the forest are of; run: units, prompts, seed, and overrides of arms and conditions.
    """
    with atomic_path(folder / f"{NAME}.csv") as path:
        table.to_csv(path, index=False)
    draw_forest(table, folder / "forest.png", reference=reference, judged=judged)
    draw_batches(table, folder / "batches.png", reference=reference)
    draw_classes(table, folder / "classes.png")
    return write_page(
        folder / f"{NAME}.md",
        PAGE,
        provenance,
        title="Signal and noise of the policy gradient",
        question=QUESTION,
        paper=PAPER,
        ran=_ran(run),
        measured="\n\n".join(_measured(table, reference, judged)),
        pictures={
            "forest.png": f"Alignment of a batch of {judged} problems, relative to {reference}; right of the line weights pay",
            "batches.png": f"Alignment relative to {reference} by problems in a batch; weights pay while noise limits",
            "classes.png": "Which kinds of tokens carry the signal, and which make the noise, with uniform weights",
        },
    )


def _ran(run: Mapping[str, object]) -> str:
    conditions, arms = run["conditions"], run["arms"]
    assert isinstance(conditions, Mapping)
    assert isinstance(arms, Mapping)
    said = "; ".join(f"`{name}`: {' '.join(how) or 'the embedded default'}" for name, how in conditions.items())
    made = "; ".join(f"`{name}`: {' '.join(how)}" for name, how in arms.items())
    return (
        f"Under each condition the base model wrote one group of completions for each of {run['units']} x {run['prompts']} "
        f"training problems (seed {run['seed']}); the gradient of every unit of {run['prompts']} problems was taken once per "
        f"arm, by the learner's own update. Nothing was trained. Conditions: {said}. Arms: {made}.\n\n{REASONING}"
    )


def _measured(table: pd.DataFrame, reference: str, judged: int) -> list[str]:
    conditions = list(table["condition"].unique())
    facts = table[table["metric"] == FACT].pivot(index="arm", columns="condition", values="value")
    rows = [
        [name, *(_number(facts[one][name]) for one in conditions)]
        for name in table["arm"].unique()
        if name in facts.index
    ]
    parts = [READING.format(reference=reference, best=BEST), "## The conditions", table_lines(["", *conditions], rows)]
    for metric, title in (
        (ALIGNMENT_RATIO, f"Alignment relative to `{reference}`, batches of {judged} problems"),
        (GAIN_RATIO, f"First-order gain of an AdamW step relative to `{reference}`, batches of {judged} problems"),
    ):
        chosen = table[(table["metric"] == metric) & (table["batch"] == judged)]
        parts += [f"## {title}", _by_condition(chosen, _weightings(table), conditions)]
    chosen = table[(table["metric"] == ALIGNMENT_RATIO) & np.isinf(table["batch"])]
    parts += [
        "## Alignment relative to the same, batches without end: what is left without noise",
        _by_condition(chosen, _weightings(table), conditions),
    ]
    absolute = []
    for metric, name in ((ALIGNMENT, "alignment"), (GAIN, "points of reward a step")):
        for batch in sorted(table.loc[table["metric"] == metric, "batch"].unique()):
            rows_of = table[(table["metric"] == metric) & (table["batch"] == batch) & (table["arm"] == reference)]
            size = "no end" if np.isinf(batch) else f"{batch:.0f} problems"
            absolute.append([f"{name}, {size}", *(_cell(rows_of, "condition", one) for one in conditions)])
    parts += [f"## `{reference}` itself", table_lines(["", *conditions], absolute)]
    classes = list(table.loc[table["metric"] == SIGNAL_SHARE, "arm"].unique())
    shares = []
    for one in classes:
        for metric, name in ((SIGNAL_SHARE, "signal"), (NOISE_SHARE, "noise")):
            rows_of = table[(table["metric"] == metric) & (table["arm"] == one)]
            shares.append([f"{one}: {name}", *(_cell(rows_of, "condition", where) for where in conditions)])
    return [
        *parts,
        "## Where the signal is and where the noise, uniform weights",
        table_lines(["", *conditions], shares),
    ]


def _weightings(table: pd.DataFrame) -> list[str]:
    """Arms that weigh tokens: those that are no class alone."""
    classes = set(table.loc[table["metric"] == SIGNAL_SHARE, "arm"])
    arms = table.loc[table["metric"] == ALIGNMENT_RATIO, "arm"].unique()
    return [name for name in arms if name not in classes]


def _by_condition(rows: pd.DataFrame, arms: Sequence[str], conditions: Sequence[str]) -> str:
    lines = []
    for arm in arms:
        own = rows[rows["arm"] == arm]
        lines.append([f"`{arm}`", *(_cell(own, "condition", one) for one in conditions)])
    return table_lines(["arm", *conditions], lines)


def _cell(rows: pd.DataFrame, key: str, wanted: str) -> str:
    found = rows[rows[key] == wanted]
    return "" if found.empty else "{:.3g} [{:.3g}, {:.3g}]".format(*found[["value", "low", "high"]].iloc[0])


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def draw_forest(table: pd.DataFrame, path: Path, *, reference: str, judged: int) -> None:
    """A panel per condition, a line per arm: alignment and gain relative to the reference with their intervals."""
    conditions, arms = list(table["condition"].unique()), [name for name in _weightings(table) if name != reference]
    kinds = {ALIGNMENT_RATIO: "alignment", GAIN_RATIO: "gain of an AdamW step"}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.0 + 2.2 * len(conditions), 1.6 + 0.36 * len(arms)), layout="constrained")
        panels = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
        for axes, condition in zip(panels, conditions, strict=True):
            for index, metric in enumerate(kinds):
                rows = table[
                    (table["condition"] == condition) & (table["metric"] == metric) & (table["batch"] == judged)
                ].set_index("arm")
                heights = [place + (index - 0.5) * 0.3 for place in range(len(arms))]
                axes.hlines(heights, rows.loc[arms, "low"], rows.loc[arms, "high"], color=COLOURS[index + 1])
                axes.scatter(
                    rows.loc[arms, "value"],
                    heights,
                    s=22,
                    color=COLOURS[index + 1],
                    marker=MARKERS[index + 1],
                    label=kinds[metric],
                )
            axes.axvline(1.0, color="#555555", linewidth=1, linestyle=":")
            axes.set_title(condition, fontsize=10, loc="left")
        panels[0].set_yticks(range(len(arms)), arms)
        panels[0].set_ylim(len(arms) - 0.5, -0.5)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
        save_png(figure, path)


def draw_batches(table: pd.DataFrame, path: Path, *, reference: str) -> None:
    """A panel per condition, a line per arm: alignment relative to the reference over the problems of a batch."""
    conditions, arms = list(table["condition"].unique()), [name for name in _weightings(table) if name != reference]
    rows = table[table["metric"] == ALIGNMENT_RATIO]
    batches = sorted(rows["batch"].unique())
    labels = ["∞" if np.isinf(batch) else f"{batch:.0f}" for batch in batches]
    with mpl.rc_context(STYLE):
        across = min(3, len(conditions))
        down = -(-len(conditions) // across)
        figure = Figure(figsize=(3.8 * across, 0.8 + 2.8 * down), layout="constrained")
        panels: list[Axes] = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
        for axes, condition in zip(panels, conditions, strict=False):
            for index, arm in enumerate(arms):
                line = rows[(rows["condition"] == condition) & (rows["arm"] == arm)].sort_values("batch")
                colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
                places = range(len(batches))
                axes.plot(places, line["value"], color=colour, marker=marker, linewidth=1.4, markersize=5, label=arm)
            axes.axhline(1.0, color="#555555", linewidth=1, linestyle=":")
            axes.set_xticks(range(len(batches)), labels)
            axes.set_title(condition, fontsize=10, loc="left")
        for axes in panels[len(conditions) :]:
            axes.set_visible(False)
        figure.supxlabel("problems in a batch", fontsize=10)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", frameon=False)
        save_png(figure, path)


def draw_classes(table: pd.DataFrame, path: Path) -> None:
    """A panel per condition, a pair of bars per class of tokens: its shares of the signal and of the noise."""
    conditions = list(table["condition"].unique())
    classes = list(table.loc[table["metric"] == SIGNAL_SHARE, "arm"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 2.2 * len(conditions), 3.0), layout="constrained")
        panels = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
        for axes, condition in zip(panels, conditions, strict=True):
            for index, (metric, name) in enumerate(((SIGNAL_SHARE, "signal"), (NOISE_SHARE, "noise"))):
                rows = (
                    table[(table["condition"] == condition) & (table["metric"] == metric)]
                    .set_index("arm")
                    .reindex(classes)
                )
                places = [place + (index - 0.5) * 0.36 for place in range(len(classes))]
                errors = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
                axes.bar(
                    places, rows["value"], width=0.34, yerr=errors, color=COLOURS[index + 1], label=name, capsize=2
                )
            axes.axhline(0.0, color="#555555", linewidth=0.8)
            axes.set_xticks(range(len(classes)), classes, rotation=45, fontsize=9)
            axes.set_title(condition, fontsize=10, loc="left")
        panels[0].set_ylabel("share")
        panels[0].legend(frameon=False)
        save_png(figure, path)
