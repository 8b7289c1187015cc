"""The page of the fidelity study: its table, its picture, and what its template shows of them."""

import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from oar.analysis.reports.figures import dots, legend_below, picture, series_of, style
from oar.analysis.reports.methods import LOOKS, family, label, look, looks_of
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
    reference = str(run["reference"])
    draw_fidelity(table, folder / "fidelity.png", reference=reference, lead=lead, series=series)
    found = {
        (row["condition"], row["signal"], row["split"], row["metric"]): (row["value"], row["low"], row["high"])
        for row in table.to_dict("records")
    }

    def cell(condition: str, signal: str, metric: str = SPEARMAN, split: str = ALL, sign: str = "") -> str:
        if (condition, signal, split, metric) not in found:
            return ""
        return "{0:{3}} [{1:{3}}, {2:{3}}]".format(*found[condition, signal, split, metric], f"{sign}.2f")

    on_lines = {*chain(*(line.values() for line in series.values())), reference}
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
        called=called(reference),
        facts=facts,
        agreement=AGREEMENT,
        draws=[name.removesuffix(BETWEEN_DRAWS) for name in between],
        drawn_signals=[name for name in signals if name in on_lines],
        other_signals=[name for name in signals if name not in on_lines],
        conditions=conditions,
        signals=signals,
        run=run,
    )


def called(reference: str) -> str:
    """What the signals are held against, in words: OAR-P is exact, whatever a token is changed to."""
    return f"exact {label(reference)}" if reference.startswith("oar_p") else label(reference)


def draw_fidelity(table: pd.DataFrame, path: Path, *, reference: str, lead: tuple[str, str], series: Series) -> None:
    """Above: cost against Spearman under the first condition. Below: the two signals of `lead` under every condition."""
    conditions = list(table["condition"].unique())
    with picture(path, 6.8 + 0.36 * len(conditions)) as figure:
        heights = (4.6, 2.2 + 0.36 * len(conditions))
        upper, lower = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
        above, below = upper.subplots(), lower.subplots()
        _draw_costs(above, table[table["condition"] == conditions[0]], lead, series)
        above.set_ylabel(f"Spearman with {called(reference)}")
        above.set_title(f"cost and fidelity, condition {conditions[0]}")
        legend_below(upper, dict(zip(*reversed(above.get_legend_handles_labels()), strict=True)))
        shown = (table["split"] == ALL) & (table["metric"] == SPEARMAN) & table["signal"].isin(lead)
        rows = table[shown].assign(line=table["condition"], series=table["signal"])
        dots(below, rows, lines=conditions, looks=looks_of(lead), beside=0.0)
        below.set_xlabel(f"Spearman with {called(reference)}, 95 % interval over problems")
        below.set_title("one backward, by condition")
        legend_below(lower, series_of([below], looks_of(lead)))


def _draw_costs(axes: Axes, rows: pd.DataFrame, lead: tuple[str, str], series: Series) -> None:
    wide = rows[rows["split"] == ALL].pivot(index="signal", columns="metric", values="value").dropna(subset=[FORWARD])
    tokens = wide[FORWARD] + wide[BACKWARD]
    points = pd.DataFrame({"tokens": tokens, "agreement": wide[SPEARMAN]})[tokens > 0].dropna()
    for index, line in enumerate(series.values()):
        known = {text: points.loc[signal] for text, signal in line.items() if signal in points.index}
        if not known:
            continue
        one = family([*line.values()][-2:][0])  # its ends may be other signals
        x, y = zip(*known.values(), strict=True)
        axes.plot(x, y, label=one.label, **style(one))
        for text, point in known.items():  # lines lie close together: their numbers stand above and below in turn
            offset = (0, 6 if index % 2 == 0 else -14)
            axes.annotate(text, tuple(point), offset, textcoords="offset points", ha="center", color=one.colour)
    on_lines = {signal for line in series.values() for signal in line.values()} - set(lead)
    # Signals of equal ranks and cost share a point.
    rest = points[~points.index.isin(on_lines)].round({"tokens": 0, "agreement": 3}).groupby(["tokens", "agreement"])
    cheapest, lowest = points["tokens"].min(), -math.inf
    gap = 0.045 * (points["agreement"].max() - points["agreement"].min())  # between two names
    for same in sorted(rest.groups.values(), key=lambda names: points.loc[names[0], "agreement"]):
        listed = sorted(same, key=lambda name: name not in LOOKS)
        one, (x, y) = look(listed[0]), points.loc[listed[0]]
        axes.plot(x, y, linestyle="", **style(one))
        names = ", ".join(look(name).label for name in listed)
        if x <= cheapest + 1:  # many stand one above the other
            lowest = max(y, lowest + gap)
            axes.annotate(names, (x, y), (0.95 * x, lowest), ha="right", va="center", color=one.colour)
        else:
            axes.annotate(names, (x, y), (4, -17), textcoords="offset points", ha="right", color=one.colour)
    axes.set_xlim(cheapest / 2, points["tokens"].max() * 1.15)  # room for the names of the cheapest and the dearest
    axes.margins(y=0.1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens through the model for one completion, forward and backward (clean forward included)")
