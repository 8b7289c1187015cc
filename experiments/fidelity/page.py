"""The fidelity study from its table to files: `fidelity.csv`, `fidelity.md`, `fidelity.png`, `provenance.json`."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import CLOSED, OPENED, conclusion_of
from oar.analysis.signals.agreement import BACKWARD, FORWARD, MASS, SECONDS, WEIGHTS
from oar.analysis.signals.recall import ALL, CORRECT, OVERLAP, SPEARMAN, WRONG
from oar.common.files import atomic_path, write_text_atomic

BETWEEN_DRAWS = " between draws"
AGREEMENT_COLUMNS = {
    SPEARMAN: "Spearman",
    OVERLAP: "shared top fifth",
    WEIGHTS: "correlation of weights",
    MASS: "importance found in top fifth",
}
INTRODUCTION = """# Fidelity: what stands in for exact OAR-P?

**Question.** Exact OAR-P runs the model once more for every reasoning token. How well does each cheaper signal agree with
it, what does it cost, and where does the squared gradient norm (`oar_gn`) keep its lead over OAR-G as published (`oar_g`)?

**What the paper says.** That OAR-G keeps about 80-90 % of OAR-P's gain in accuracy. A correlation between the two signals is
not among the values we hold.

**What was run.** Held-out problems (split `{split}`, {problems} of each tier), one completion each, drawn by the model under
study at the training temperature, seed {seed}; random weights score what the taught model of the same kind wrote. Every
signal is computed on the same completions, those with an answer, and compared with `{reference}`. Seconds: the
fastest of {repeats} calls on all completions at once, {threads} torch thread(s).{left_out}

All values are means over completions; in brackets the 95 % bootstrap interval over problems.
"""
READING = """**How to read it.** *Spearman*: rank correlation with `{reference}` within a completion. *Shared top fifth*: share of
its top fifth that is in the signal's. *Correlation of weights*: Pearson's, of what the gate makes of both. *Importance found
in top fifth*: share of all importance of `{reference}` that lies in the signal's top fifth (the line of `{reference}` is the
ceiling). *Tokens*: positions that run through the layers for one completion, forwards and backwards to the embeddings, padding
and the clean forward included; where the update's own forward is shared (docs/METHOD.md §4) the clean forward costs nothing.
"""


def write_fidelity(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    folder: Path,
    *,
    run: Mapping[str, object],
    conditions: Mapping[str, str],
    signals: Mapping[str, Mapping[str, object]],
    lead: tuple[str, str],
    series: Mapping[str, Mapping[str, str]],
    provenance: Mapping[str, object],
) -> None:
    """Write the four files into `folder`, each atomically. What people wrote into fidelity.md between its markers stays.

    table: `oar.analysis.signals.agreement.fidelity_table`; facts: `oar.analysis.signals.agreement.condition_facts`;
    run: split, problems, seed, reference,
    repeats, threads, skipped; conditions: name to what it is; signals: name to the class and arguments that make it; lead: the
    two signals that are compared under every condition, the hoped-for winner first; series: name of a line of the picture
    to its points, each a text and its signal; provenance: `collect_provenance`. Costs are shown of the first condition.
    """
    with atomic_path(folder / "fidelity.csv") as path:
        table.to_csv(path, index=False)
    text = markdown(
        table,
        facts,
        run=run,
        conditions=conditions,
        signals=signals,
        lead=lead,
        series=series,
        provenance=provenance,
        follows=conclusion_of(folder / "fidelity.md"),
    )
    write_text_atomic(folder / "fidelity.md", text)
    draw_fidelity(table, folder / "fidelity.png", lead=lead, series=series)
    record = {**provenance, "run": dict(run), "conditions": {name: dict(facts[name]) for name in facts}}
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")


def markdown(
    table: pd.DataFrame,
    facts: Mapping[str, Mapping[str, float]],
    *,
    run: Mapping[str, object],
    conditions: Mapping[str, str],
    signals: Mapping[str, Mapping[str, object]],
    lead: tuple[str, str],
    series: Mapping[str, Mapping[str, str]],
    provenance: Mapping[str, object],
    follows: str,
) -> str:
    """The text of fidelity.md; follows: what people concluded."""
    first, (winner, published) = next(iter(facts)), lead
    left_out = f" Left out, since their weights are null: {run['skipped']}." if run["skipped"] else ""
    draws = [name for name in table["signal"].unique() if name.endswith(BETWEEN_DRAWS)]
    drawn = {*chain(*(line.values() for line in series.values())), run["reference"]}
    parts = [
        INTRODUCTION.format(left_out=left_out, **run),
        f"## What follows\n\n{OPENED}\n{follows}\n{CLOSED}",
        "![cost against fidelity, and the lead by condition](fidelity.png)",
        f"## Cost and fidelity under `{first}`\n\n" + READING.format(**run),
        cost_table(table[table["condition"] == first], list(signals)),
        f"## Does `{winner}` keep its lead over `{published}`?\n\nSpearman with `{run['reference']}`; "
        "differences completion by completion, so that their intervals are narrower than the two signals' own.",
        lead_table(table, lead, draws),
        "## Every condition: windows, routes and budgets\n\nSpearman with exact OAR-P under the same condition.",
        condition_table(table, [name for name in signals if name in drawn]),
        "## Every condition: other signals\n\nSpearman with exact OAR-P under the same condition.",
        condition_table(table, [name for name in signals if name not in drawn]),
        "## The conditions",
        _table(
            ["condition", "what it is", "completions with an answer", "right", "reasoning tokens, mean"],
            [
                [
                    f"`{name}`",
                    conditions[name],
                    f"{fact['completions']} of {fact['drawn']}",
                    f"{fact['correct']}",
                    f"{fact['reasoning_tokens']:.1f}",
                ]
                for name, fact in facts.items()
            ],
        ),
        "## The signals\n\n"
        + _table(["signal", "made by"], [[f"`{name}`", _target(how)] for name, how in signals.items()]),
        f"## How to repeat it\n\n`{provenance['command']}`, "
        "or `make fidelity`; what decides the numbers is in `provenance.json`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def cost_table(rows: pd.DataFrame, signals: Sequence[str]) -> str:
    """A line per signal: what it costs a completion, and how well it agrees."""
    values, text = _values(rows), _texts(rows)
    lines = []
    for signal in signals:
        cost = {metric: values[signal, ALL, metric] for metric in (FORWARD, BACKWARD, SECONDS)}
        agreement = [text.get((signal, ALL, metric), "") for metric in AGREEMENT_COLUMNS]
        lines.append(
            [f"`{signal}`", f"{cost[FORWARD]:.0f}", f"{cost[BACKWARD]:.0f}", f"{1000 * cost[SECONDS]:.2f}", *agreement]
        )
    return _table(["signal", "tokens forward", "backward", "ms", *AGREEMENT_COLUMNS.values()], lines)


def lead_table(table: pd.DataFrame, lead: tuple[str, str], draws: Sequence[str]) -> str:
    """A line per condition: both signals, their difference on all, right and wrong completions, noise against noise."""
    difference = " - ".join(lead)
    lines = []
    for condition, rows in table.groupby("condition", sort=False):
        text, signed = _texts(rows), _texts(rows, sign="+")
        cells = [text.get((signal, ALL, SPEARMAN), "") for signal in (lead[1], lead[0])]
        cells += [signed.get((difference, split, SPEARMAN), "") for split in (ALL, CORRECT, WRONG)]
        cells += [text.get((signal, ALL, SPEARMAN), "") for signal in draws]
        lines.append([f"`{condition}`", *cells])
    header = [f"`{lead[1]}`", f"`{lead[0]}`", "difference", "of right completions", "of wrong ones"]
    return _table(
        ["condition", *header, *(f"`{signal.removesuffix(BETWEEN_DRAWS)}`, draw against draw" for signal in draws)],
        lines,
    )


def condition_table(table: pd.DataFrame, signals: Sequence[str]) -> str:
    """A line per signal, a column per condition: Spearman."""
    columns = {str(condition): _values(rows) for condition, rows in table.groupby("condition", sort=False)}
    lines = []
    for signal in signals:
        found = [values.get((signal, ALL, SPEARMAN)) for values in columns.values()]
        lines.append([f"`{signal}`", *("" if value is None else f"{value:.2f}" for value in found)])
    return _table(["signal", *(f"`{name}`" for name in columns)], lines)


def draw_fidelity(
    table: pd.DataFrame, path: Path, *, lead: tuple[str, str], series: Mapping[str, Mapping[str, str]]
) -> None:
    """Left: cost against Spearman under the first condition. Right: the two signals of `lead` under every condition."""
    with mpl.rc_context(STYLE):
        conditions = list(table["condition"].unique())
        figure = Figure(figsize=(12.5, max(5.4, 2.2 + 0.36 * len(conditions))), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_costs(left, table[table["condition"] == conditions[0]], lead, series)
        left.set_title(f"cost and fidelity, condition {conditions[0]}", loc="left")
        rows = table[(table["split"] == ALL) & (table["metric"] == SPEARMAN)]
        for index, signal in enumerate(reversed(lead)):
            of_signal = rows[rows["signal"] == signal]
            heights = [conditions.index(name) + (index - 0.5) * 0.25 for name in of_signal["condition"]]
            style = {"color": COLOURS[index + 4]}
            right.hlines(heights, of_signal["low"], of_signal["high"], linewidth=1.4, **style)
            right.scatter(of_signal["value"], heights, s=28, marker=MARKERS[index + 4], label=signal, **style)
        right.set_yticks(range(len(conditions)), conditions)
        right.set_ylim(len(conditions) - 0.5, -0.5)
        right.axvline(0, color="#555555", linewidth=1, linestyle=":")
        right.set_xlabel("Spearman with exact OAR-P, 95 % interval over problems")
        right.set_title("one backward, by condition", loc="left")
        for axes in (left, right):
            axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4)
        save_png(figure, path)


def _draw_costs(axes: Axes, rows: pd.DataFrame, lead: tuple[str, str], series: Mapping[str, Mapping[str, str]]) -> None:
    values = _values(rows)
    points = {}
    for signal in rows.loc[rows["metric"] == FORWARD, "signal"]:
        tokens = values[signal, ALL, FORWARD] + values[signal, ALL, BACKWARD]
        if tokens > 0 and (signal, ALL, SPEARMAN) in values:
            points[str(signal)] = tokens, values[signal, ALL, SPEARMAN]
    on_lines = {signal for line in series.values() for signal in line.values()}
    together: dict[tuple[float, float], list[str]] = {}  # signals of equal ranks and cost share a point
    for signal, point in points.items():
        if signal in lead or signal not in on_lines:
            together.setdefault((round(point[0]), round(point[1], 3)), []).append(signal)
    cheapest = min(tokens for tokens, _ in points.values()) + 1
    alone = {", ".join(signals): signals[0] for signals in together.values()}
    for index, (name, line) in enumerate({**series, "gradients": alone}.items()):
        known = {text: points[signal] for text, signal in line.items() if signal in points}
        style: dict[str, Any] = {"color": COLOURS[index + 1], "marker": MARKERS[index + 1], "markersize": 5}
        axes.plot(*zip(*known.values(), strict=True), linestyle="-" if name in series else "", label=name, **style)
        for text, point in known.items():
            if name in series:  # lines lie close together: their numbers stand above and below in turn
                offset, side = (0, 5 if index % 2 == 0 else -12), "center"
            else:
                offset, side = ((-6, -3), "right") if point[0] <= cheapest else ((0, 6), "center")
            label: dict[str, Any] = {"textcoords": "offset points", "ha": side, "fontsize": 8}
            axes.annotate(text, point, offset, color=COLOURS[index + 1], **label)
    axes.set_xlim(left=cheapest / 2)  # room for the names of the cheapest
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens through the model for one completion, forward and backward (clean forward included)")
    axes.set_ylabel("Spearman with exact OAR-P")


def _values(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    keys = rows[["signal", "split", "metric"]].astype(str).to_numpy().tolist()
    return {(signal, split, metric): value for (signal, split, metric), value in zip(keys, rows["value"], strict=True)}


def _texts(rows: pd.DataFrame, *, sign: str = "") -> dict[tuple[str, str, str], str]:
    indexed = rows.set_index(["signal", "split", "metric"])[["value", "low", "high"]]
    return {
        key: f"{value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"
        for key, (value, low, high) in zip(indexed.index, indexed.to_numpy().tolist(), strict=True)
    }


def _target(how: Mapping[str, object]) -> str:
    name = str(how["_target_"]).rpartition(".")[2]
    return f"`{name}({', '.join(f'{key}={value}' for key, value in how.items() if key != '_target_')})`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
