"""The page of the gradient's signal and noise: its table, three pictures, and what its template shows of them."""

from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.gradient_signal.cosines import ALIGNMENT_RATIO, BEST, FACT, GAIN_RATIO, NOISE_SHARE, SIGNAL_SHARE
from experiments.gradient_signal.foretold import foretold, steps_of
from experiments.shared.committed import committed
from oar.analysis.reports.figures import QUIET, dash, draw_dots, legend_below, panels, picture, series_of, style
from oar.analysis.reports.methods import label, looks_of, numbered
from oar.analysis.reports.page import write_csv, write_page
from oar.analysis.reports.signals import Pictures
from oar.statistics.intervals import CONFIDENCE

TEMPLATE = Path(__file__).with_name("page.md.j2")
TOLD = (
    "name",
    "reference",
    "judged",
    "overrides",
    "units",
    "prompts",
    "seed",
    "target",
    "arms",
    "conditions",
    "foretold",
)


def write_gradient_signal(
    about: Mapping[str, Any], table: pd.DataFrame, folder: Path, provenance: Mapping[str, Any]
) -> Path:
    """Write the page of a measurement and its files into `folder`; returns the page.

    about: what no table holds, of TOLD; table: `experiments.gradient_signal.cosines.signal_table` of every condition, with
    `condition`, batches in problems, and rows of facts.
    """
    write_csv(table, folder / f"{about['name']}.csv")
    return judge_gradients(folder, {**provenance, "gradients": dict(about)})


def judge_gradients(folder: Path, provenance: Mapping[str, Any]) -> Path:
    """The same from the table that is there, beside the steps of today's runs in the folder `foretold`, where it names one."""
    about = provenance["gradients"]
    table = pd.read_csv(folder / f"{about['name']}.csv")
    classes, arms = token_classes(table), weightings(table)
    batches = sorted(batch for batch in table["batch"].unique() if np.isfinite(batch))
    for file, draw in pictures(reference=about["reference"], judged=about["judged"]).items():
        draw(table, folder / file)
    costs = None if about["foretold"] is None else steps_of(committed(about["foretold"]))
    return write_page(
        folder / f"{about['name']}.md",
        TEMPLATE,
        provenance,
        cells=cell_texts(table),
        conditions=list(table["condition"].unique()),
        facts=list(table.loc[table["metric"] == FACT, "arm"].unique()),
        arms=arms,
        classes=classes,
        batches=batches,
        no_end=inf,
        reference=about["reference"],
        judged=about["judged"],
        best=BEST,
        run=about,
        foretold=[] if costs is None else foretold(table, costs, batch=about["judged"]),
    )


def cell_texts(table: pd.DataFrame) -> dict[tuple[str, str, float, str], str]:
    """By metric, arm, batch (0 where there is none) and condition: the value, and its interval where it has one."""
    texts = {}
    for row in table.fillna({"batch": 0}).to_dict("records"):
        large = row["metric"] == FACT and row["value"] >= 1000
        text = f"{row['value']:.0f}" if large else f"{row['value']:.3g}"
        if row["metric"] != FACT:
            text = f"{text} [{row['low']:.3g}, {row['high']:.3g}]" if np.isfinite(row["value"]) else "hidden by noise"
        texts[row["metric"], row["arm"], row["batch"], row["condition"]] = text
    return texts


def token_classes(table: pd.DataFrame) -> list[str]:
    """The kinds of tokens whose shares of signal and noise were measured."""
    return list(table.loc[table["metric"] == SIGNAL_SHARE, "arm"].unique())


def weightings(table: pd.DataFrame) -> list[str]:
    """The arms that weigh tokens."""
    compared = table.loc[table["metric"] == ALIGNMENT_RATIO, "arm"].unique()
    return [name for name in compared if name not in token_classes(table)]


def pictures(*, reference: str, judged: int) -> Pictures:
    """The files, each with what draws the table into it."""
    return {
        "forest.png": partial(draw_forest, reference=reference, judged=judged),
        "batches.png": partial(draw_batches, reference=reference),
        "classes.png": draw_classes,
    }


def draw_forest(table: pd.DataFrame, path: Path, *, reference: str, judged: int) -> None:
    """A panel per condition and ratio, a line per arm: alignment and gain relative to the reference with their intervals."""
    kinds = {ALIGNMENT_RATIO: "alignment", GAIN_RATIO: "gain of an AdamW step"}
    arms = [name for name in weightings(table) if name != reference]
    rows = table[table["metric"].isin(list(kinds)) & (table["batch"] == judged) & table["arm"].isin(arms)]
    rows = rows.assign(series=rows["arm"], line=rows["arm"].map(label))
    grid = {
        f"{condition}: {title}": rows[(rows["condition"] == condition) & (rows["metric"] == metric)]
        for condition in rows["condition"].unique()
        for metric, title in kinds.items()
    }
    ratio = dict.fromkeys(grid, f"ratio to {label(reference)}'s")
    note = f"Batches of {judged} problems; right of the dotted line weights pay. {CONFIDENCE:.0%} intervals"
    draw_dots(grid, path, looks=looks_of(arms), columns=2, beside=dict.fromkeys(grid, 1.0), xlabel=ratio, note=note)


def draw_batches(table: pd.DataFrame, path: Path, *, reference: str) -> None:
    """A panel per condition, a line per arm: alignment relative to the reference over the problems of a batch."""
    rows, conditions = table[table["metric"] == ALIGNMENT_RATIO], list(table["condition"].unique())
    of_arms = looks_of([name for name in weightings(table) if name != reference])
    with picture(path, 1.6 + 3.4 * -(-len(conditions) // 2)) as figure:
        grid = panels(figure, conditions, 2, sharey=True)
        for axes, condition in zip(grid, conditions, strict=True):
            own = rows[rows["condition"] == condition].pivot(index="batch", columns="arm", values="value")
            for arm, look in of_arms.items():
                axes.plot(own[arm].to_numpy(), linewidth=1.4, label=look.label, linestyle=dash(look), **style(look))
            axes.axhline(1.0, color=QUIET, linewidth=1, linestyle=":")
            axes.set_xlabel("problems in a batch")
            axes.set_xticks(range(len(own)), ["∞" if np.isinf(batch) else f"{batch:.0f}" for batch in own.index])
        figure.supylabel(f"alignment relative to {label(reference)}'s")
        legend_below(figure, series_of(grid, of_arms))


def draw_classes(table: pd.DataFrame, path: Path) -> None:
    """A panel per condition, a pair of bars per class of tokens there: its shares of the signal and of the noise."""
    conditions, parts = list(table["condition"].unique()), numbered(["signal", "noise"])
    with picture(path, 3.8) as figure:
        grid = panels(figure, conditions, len(conditions), sharey=True)
        for axes, condition in zip(grid, conditions, strict=True):
            of_condition = table[table["condition"] == condition]
            for side, metric, look in zip((-0.5, 0.5), (SIGNAL_SHARE, NOISE_SHARE), parts.values(), strict=True):
                rows = of_condition[of_condition["metric"] == metric]
                errors = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
                places = [place + 0.36 * side for place in range(len(rows))]
                axes.bar(places, rows["value"], width=0.34, yerr=errors, color=look.colour, label=look.label, capsize=2)
            axes.axhline(0.0, color=QUIET, linewidth=0.8)
            axes.set_xticks(range(len(rows)), list(rows["arm"]))
        grid[0].set_ylabel("share")
        legend_below(figure, series_of(grid, parts))
