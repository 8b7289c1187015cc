"""Where the weights of a study's runs sat while they trained: a section of its page and two pictures."""

import textwrap
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.study.credit_dynamics import PARTS, QUANTITIES
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import table_lines, with_error
from oar.statistics.intervals import mean_and_standard_error

READING = """Of the completions that the runs kept, those with an answer and an advantage; a value is the mean over a step's
completions, then over seeds, ± the standard error over seeds. *First* and *last* are the first and the last step that completions
were kept of. Credit concentrates where ESS ratio and entropy of the weights fall and the top fifth's share rises."""


def credit_section(table: pd.DataFrame) -> str:
    """Markdown: each quantity of each arm at the first and the last kept step, and the change, paired by seed."""
    lines = []
    for (condition, arm), own in table.groupby(["condition", "arm"], sort=False):
        for name, title in QUANTITIES.items():
            by_seed = own[own["quantity"] == name].pivot(index="seed", columns="step", values="value").dropna(axis=1)
            if by_seed.empty:
                continue
            first, last = by_seed[by_seed.columns[0]], by_seed[by_seed.columns[-1]]
            forms = ((first, ".3f"), (last, ".3f"), (last - first, "+.3f"))
            cells = [with_error(*mean_and_standard_error(values), form) for values, form in forms]
            lines.append([str(condition), f"`{arm}`", title, *cells, f"{by_seed.columns[0]}, {by_seed.columns[-1]}"])
    header = ["condition", "arm", "quantity", "first", "last", "change", "steps"]
    return "\n\n".join(["## Does credit concentrate?", READING, table_lines(header, lines)])


def draw_credit(table: pd.DataFrame, path: Path) -> None:
    """A panel per quantity, a line per arm over the steps: the mean over seeds, seeds themselves thin."""
    arms = list(table["arm"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 6.4), layout="constrained")
        panels = list(figure.subplots(2, 4).flat)
        for axes, (name, title) in zip(panels, QUANTITIES.items(), strict=False):
            for index, arm in enumerate(arms):
                own = table[(table["quantity"] == name) & (table["arm"] == arm)]
                style = {"color": COLOURS[(index + 1) % len(COLOURS)]}
                for _, of in own.groupby(["condition", "seed"]):
                    axes.plot(of["step"], of["value"], linewidth=0.6, alpha=0.4, **style)
                mean = own.groupby("step")["value"].mean()
                marker = MARKERS[(index + 1) % len(MARKERS)]
                axes.plot(mean.index, mean, linewidth=2, marker=marker, markersize=5, label=arm, **style)
            axes.set_title(textwrap.fill(title.split(" (")[0], 34), fontsize=9)
            axes.set_xlabel("training step", fontsize=9)
        for axes in panels[len(QUANTITIES) :]:
            axes.set_visible(False)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower right", ncols=len(arms), frameon=False)
        save_png(figure, path)


def draw_profile(table: pd.DataFrame, path: Path) -> None:
    """A panel per arm: mean weight of each tenth of the reasoning, at the first and at the last kept step."""
    arms = list(table["arm"].unique())
    rows = table[table["quantity"].str.startswith("part_")]
    rows = rows.assign(part=rows["quantity"].str.removeprefix("part_").astype(int))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.0 * len(arms), 3.0), layout="constrained")
        for axes, arm in zip(figure.subplots(1, len(arms), sharey=True, squeeze=False)[0], arms, strict=True):
            own = rows[rows["arm"] == arm]
            steps = (own["step"].min(), own["step"].max())
            for index, step in enumerate(dict.fromkeys(steps)):
                mean = own[own["step"] == step].groupby("part")["value"].mean()
                style = {"color": COLOURS[index + 1], "marker": MARKERS[index + 1], "linestyle": ("--", "-")[index]}
                axes.plot((mean.index + 0.5) / PARTS, mean, linewidth=1.6, label=f"step {step}", **style)
            axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=":")
            axes.set_xticks(np.linspace(0, 1, 3))
            axes.set_title(arm, fontsize=10, loc="left")
            axes.set_xlabel("place in the reasoning")
            axes.legend(frameon=False, fontsize=9)
        figure.supylabel("mean weight", fontsize=10)
        save_png(figure, path)
