"""The page of the gradient's signal and noise: its table, three pictures, and what its template shows of them."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.gradient_signal.cosines import ALIGNMENT_RATIO, BEST, FACT, GAIN_RATIO, NOISE_SHARE, SIGNAL_SHARE
from oar.analysis.reports.figures import COLOURS, STYLE, draw_dots, save_png, style
from oar.analysis.reports.page import write_csv, write_page

TEMPLATE = Path(__file__).with_name("page.md.j2")


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
    classes = list(table.loc[table["metric"] == SIGNAL_SHARE, "arm"].unique())
    compared = table.loc[table["metric"] == ALIGNMENT_RATIO, "arm"].unique()
    arms = [name for name in compared if name not in classes]  # those that weigh tokens
    others = [name for name in arms if name != reference]
    batches = sorted(batch for batch in table["batch"].unique() if np.isfinite(batch))
    write_csv(table, folder / "gradient_signal.csv")
    draw_forest(table, others, judged, folder / "forest.png")
    draw_batches(table, others, [*batches, inf], folder / "batches.png")
    draw_classes(table, classes, folder / "classes.png")
    return write_page(
        folder / "gradient_signal.md",
        TEMPLATE,
        provenance,
        cells=cell_texts(table),
        conditions=list(table["condition"].unique()),
        facts=list(table.loc[table["metric"] == FACT, "arm"].unique()),
        arms=arms,
        classes=classes,
        batches=batches,
        no_end=inf,
        reference=reference,
        judged=judged,
        best=BEST,
        run=run,
    )


def cell_texts(table: pd.DataFrame) -> dict[tuple[str, str, float, str], str]:
    """By metric, arm, batch (0 where there is none) and condition: the value, and its interval where it has one."""
    texts = {}
    for row in table.fillna({"batch": 0}).to_dict("records"):
        large = row["metric"] == FACT and row["value"] >= 1000
        text = f"{row['value']:.0f}" if large else f"{row['value']:.3g}"
        if row["metric"] != FACT:
            text += f" [{row['low']:.3g}, {row['high']:.3g}]"
        texts[row["metric"], row["arm"], row["batch"], row["condition"]] = text
    return texts


def draw_forest(table: pd.DataFrame, arms: Sequence[str], judged: int, path: Path) -> None:
    """A panel per condition, a line per arm: alignment and gain relative to the reference with their intervals."""
    kinds = {ALIGNMENT_RATIO: "alignment", GAIN_RATIO: "gain of an AdamW step"}
    rows = table[table["metric"].isin(list(kinds)) & (table["batch"] == judged) & table["arm"].isin(list(arms))]
    rows = rows.assign(series=rows["metric"].map(kinds), line=rows["arm"])
    panels = {str(condition): own for condition, own in rows.groupby("condition", sort=False)}
    draw_dots(panels, path, beside=dict.fromkeys(panels, 1.0))


def draw_batches(table: pd.DataFrame, arms: Sequence[str], batches: Sequence[float], path: Path) -> None:
    """A panel per condition, a line per arm: alignment relative to the reference over the problems of a batch."""
    conditions = list(table["condition"].unique())
    rows = table[table["metric"] == ALIGNMENT_RATIO]
    labels = ["∞" if np.isinf(batch) else f"{batch:.0f}" for batch in batches]
    with mpl.rc_context(STYLE):
        across = min(3, len(conditions))
        down = -(-len(conditions) // across)
        figure = Figure(figsize=(3.8 * across, 0.8 + 2.8 * down), layout="constrained")
        panels: list[Axes] = list(figure.subplots(down, across, sharey=True, squeeze=False).flat)
        for axes, condition in zip(panels, conditions, strict=False):
            for arm in arms:
                line = rows[(rows["condition"] == condition) & (rows["arm"] == arm)].sort_values("batch")
                axes.plot(
                    range(len(batches)), line["value"], linewidth=1.4, markersize=5, label=arm, **style(arm, arms)
                )
            axes.axhline(1.0, color="#555555", linewidth=1, linestyle=":")
            axes.set_xticks(range(len(batches)), labels)
            axes.set_title(condition, fontsize=10, loc="left")
        for axes in panels[len(conditions) :]:
            axes.set_visible(False)
        figure.supxlabel("problems in a batch", fontsize=10)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
        save_png(figure, path)


def draw_classes(table: pd.DataFrame, classes: Sequence[str], path: Path) -> None:
    """A panel per condition, a pair of bars per class of tokens: its shares of the signal and of the noise."""
    conditions = list(table["condition"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 2.2 * len(conditions), 3.0), layout="constrained")
        panels = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
        for axes, condition in zip(panels, conditions, strict=True):
            for index, (metric, name) in enumerate(((SIGNAL_SHARE, "signal"), (NOISE_SHARE, "noise"))):
                own = table[(table["condition"] == condition) & (table["metric"] == metric)]
                rows = own.set_index("arm").reindex(classes)
                places = [place + (index - 0.5) * 0.36 for place in range(len(classes))]
                errors = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
                look = {"color": COLOURS[index + 1], "label": name, "capsize": 2}
                axes.bar(places, rows["value"], width=0.34, yerr=errors, **look)
            axes.axhline(0.0, color="#555555", linewidth=0.8)
            axes.set_xticks(range(len(classes)), classes, rotation=45, fontsize=9)
            axes.set_title(condition, fontsize=10, loc="left")
        panels[0].set_ylabel("share")
        panels[0].legend(frameon=False)
        save_png(figure, path)
