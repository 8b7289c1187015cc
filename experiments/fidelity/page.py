"""The page of the fidelity study: its table, its picture, and what its template shows of them."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, dots, save_png
from oar.analysis.reports.page import write_csv, write_page
from oar.analysis.signals.agreement import AGREEMENT, BACKWARD, FORWARD
from oar.analysis.signals.recall import ALL, SPEARMAN

TEMPLATE = Path(__file__).with_name("page.md.j2")
BETWEEN_DRAWS = " between draws"
Series = Mapping[str, Mapping[str, str]]


def write_fidelity(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    run: Mapping[str, object],
    conditions: Mapping[str, str],
    signals: Mapping[str, Mapping[str, object]],
    lead: tuple[str, str],
    series: Series,
    provenance: Mapping[str, object],
) -> None:
    """Write `fidelity.csv`, `.md`, `.png` and `provenance.json` into `folder`, each atomically.

    table and facts: `fidelity_table` and `condition_facts` of `oar.analysis.signals.agreement`; run: split, problems, seed,
    reference, repeats, threads, skipped; conditions: name to what it is; signals: name to the class and arguments that make
    it; lead: the two signals that are compared under every condition, the hoped-for winner first; series: name of a line of
    the picture to its points, each a text and its signal. Costs are shown of the first condition.
    """
    first = next(iter(facts))
    write_csv(table, folder / "fidelity.csv")
    draw_fidelity(table, folder / "fidelity.png", lead=lead, series=series)
    found = {
        (row["condition"], row["signal"], row["split"], row["metric"]): (row["value"], row["low"], row["high"])
        for row in table.to_dict("records")
    }

    def cell(condition: str, signal: str, metric: str = SPEARMAN, split: str = ALL, sign: str = "") -> str:
        if (condition, signal, split, metric) not in found:
            return ""
        return "{0:{3}} [{1:{3}}, {2:{3}}]".format(*found[condition, signal, split, metric], f"{sign}.2f")

    on_lines = {*chain(*(line.values() for line in series.values())), run["reference"]}
    between = [str(name) for name in table["signal"].unique() if name.endswith(BETWEEN_DRAWS)]
    write_page(
        folder / "fidelity.md",
        TEMPLATE,
        {**provenance, "run": dict(run), "conditions": {name: dict(facts[name]) for name in facts}},
        cell=cell,
        value={
            (name, signal, metric): one for (name, signal, split, metric), (one, *_) in found.items() if split == ALL
        },
        first=first,
        lead=lead,
        facts=facts,
        agreement=AGREEMENT,
        draws=[name.removesuffix(BETWEEN_DRAWS) for name in between],
        drawn_signals=[name for name in signals if name in on_lines],
        other_signals=[name for name in signals if name not in on_lines],
        conditions=conditions,
        signals=signals,
        run=run,
    )


def draw_fidelity(table: pd.DataFrame, path: Path, *, lead: tuple[str, str], series: Series) -> None:
    """Left: cost against Spearman under the first condition. Right: the two signals of `lead` under every condition."""
    conditions = list(table["condition"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12.5, max(5.4, 2.2 + 0.36 * len(conditions))), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_costs(left, table[table["condition"] == conditions[0]], lead, series)
        left.set_title(f"cost and fidelity, condition {conditions[0]}", loc="left")
        shown = (table["split"] == ALL) & (table["metric"] == SPEARMAN) & table["signal"].isin(lead)
        rows = table[shown].assign(line=table["condition"], series=table["signal"])
        dots(right, rows, lines=conditions, series=["", *lead], beside=0.0)
        right.set_xlabel("Spearman with exact OAR-P, 95 % interval over problems")
        right.set_title("one backward, by condition", loc="left")
        for axes in (left, right):
            named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncols": 4}
            axes.legend(named.values(), named.keys(), frameon=False, **place)
        save_png(figure, path)


def _draw_costs(axes: Axes, rows: pd.DataFrame, lead: tuple[str, str], series: Series) -> None:
    wide = rows[rows["split"] == ALL].pivot(index="signal", columns="metric", values="value").dropna(subset=[FORWARD])
    tokens = wide[FORWARD] + wide[BACKWARD]
    points = pd.DataFrame({"tokens": tokens, "agreement": wide[SPEARMAN]})[tokens > 0].dropna()
    on_lines = {signal for line in series.values() for signal in line.values()} - set(lead)
    # Signals of equal ranks and cost share a point.
    together = (
        points[~points.index.isin(on_lines)].round({"tokens": 0, "agreement": 3}).groupby(["tokens", "agreement"])
    )
    alone = {", ".join(same): same[0] for _, same in together.groups.items()}
    cheapest = points["tokens"].min() + 1
    for index, (name, line) in enumerate({**series, "gradients": alone}.items()):
        look: dict[str, Any] = {"color": COLOURS[index + 1], "marker": MARKERS[index + 1], "markersize": 5}
        known = {text: points.loc[signal] for text, signal in line.items() if signal in points.index}
        x, y = zip(*known.values(), strict=True)
        axes.plot(x, y, linestyle="-" if name in series else "", label=name, **look)
        for text, point in known.items():
            if name in series:  # lines lie close together: their numbers stand above and below in turn
                offset, side = (0, 5 if index % 2 == 0 else -12), "center"
            else:
                offset, side = ((-6, -3), "right") if point["tokens"] <= cheapest else ((0, 6), "center")
            label: dict[str, Any] = {"textcoords": "offset points", "ha": side, "fontsize": 8}
            axes.annotate(text, tuple(point), offset, color=COLOURS[index + 1], **label)
    axes.set_xlim(left=cheapest / 2)  # room for the names of the cheapest
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens through the model for one completion, forward and backward (clean forward included)")
    axes.set_ylabel("Spearman with exact OAR-P")
