"""Where a run's weights sat while it trained: does credit concentrate, and on what? (docs/METHOD.md §7.1)

Of each step whose completions a run logged (samples.jsonl), the weights of those that have an answer and an advantage.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.reports.figures import QUIET, draw_lines, legend_below, panels, picture, series_of, style
from oar.analysis.reports.methods import label, looks_of, numbered
from oar.analysis.reports.page import with_error
from oar.common.errors import DataError
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES
from oar.statistics.intervals import mean_and_standard_error

PARTS = 10  # of the reasoning, first to last
# quantity: what it is, for a table
QUANTITIES = {
    "ess_ratio": "ESS ratio (uniform: 1)",
    "weight_entropy": "entropy of the weights, share of the uniform one's",
    "suppressed_share": "share of tokens below weight 1",
    "top_fifth": "share of the weight on the fifth of tokens that has most (uniform: 0.2)",
    "centre": "centre of the weight in the reasoning, 0 first to 1 last (uniform: 0.5)",
    "last_fifth": "share of the weight in the last fifth of the reasoning (uniform: 0.2)",
    "causal_weight": "mean weight of causal tokens (uniform: 1)",
}


def weight_quantities(weights: NDArray[np.float64], causal: Sequence[int]) -> dict[str, float]:
    """Of the weights (T,) of a completion's reasoning, mean 1: QUANTITIES, and `part_0` ... the mean weight of each tenth.

    causal: positions of the causal tokens; without any, or with one token of reasoning, what is not defined is NaN. A token
    on the border of two tenths or of the last fifth counts in both by its share.
    """
    count = len(weights)
    share = weights / weights.sum()
    positive = share[share > 0]
    ordered = np.sort(share)[::-1]
    inside = [position for position in causal if position < count]
    # Weight up to a place of the reasoning, 0 to 1, linear within a token.
    up_to = np.concatenate([[0.0], share.cumsum()])
    parts = np.diff(np.interp(np.linspace(0, count, PARTS + 1), np.arange(count + 1), up_to)) * PARTS
    return {
        "ess_ratio": float(weights.sum() ** 2 / (count * np.square(weights).sum())),
        "weight_entropy": float(-(positive * np.log(positive)).sum() / np.log(count)) if count > 1 else np.nan,
        "suppressed_share": float((weights < 1).mean()),
        "top_fifth": float(np.interp(count / 5, np.arange(count + 1), np.concatenate([[0.0], ordered.cumsum()]))),
        "centre": float((share * (np.arange(count) + 0.5) / count).sum()),
        "last_fifth": float(1 - np.interp(0.8 * count, np.arange(count + 1), up_to)),
        "causal_weight": float(weights[inside].mean()) if inside else np.nan,
        **{f"part_{part}": float(value) for part, value in enumerate(parts)},
    }


def credit_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Long: condition, arm, seed, step, quantity, value, the mean over a step's logged completions; runs of weight 1 left out."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        by_step: dict[int, list[dict[str, float]]] = {}
        for step, weights, causal in _kept_weights(run):
            by_step.setdefault(step, []).append(weight_quantities(weights, causal))
        if all(found["ess_ratio"] > 1 - 1e-9 for several in by_step.values() for found in several):
            continue
        for step, several in by_step.items():
            means = pd.DataFrame(several).mean()
            of = {"condition": run.condition, "arm": run.arm, "seed": run.seed, "step": step}
            rows += [{**of, "quantity": name, "value": value} for name, value in means.items()]
    if not rows:
        raise DataError("Where credit sits needs an arm whose weights are not uniform, but none is: add one to arms.")
    return pd.DataFrame(rows)


def _kept_weights(run: Run) -> Iterator[tuple[int, NDArray[np.float64], Sequence[int]]]:
    """Of each logged completion with an answer and an advantage: its step, weights of its reasoning, causal positions."""
    path = run.folder / SAMPLES
    if not path.is_file():
        raise DataError(
            f"{run.folder} must keep completions, but has no {SAMPLES}: set tracking.samples, and run again."
        )
    for line in path.read_text(encoding="utf-8").splitlines():
        row: Mapping[str, Any] = json.loads(line)
        if row["segments"] and row["segments"][0] and row["advantage"]:
            weights = np.array(row["token_weights"][: row["segments"][0]])
            yield int(row["step"]), weights, row["marks"].get("causal", [])


def credit_changes(table: pd.DataFrame) -> list[list[object]]:
    """Cells: each quantity of each arm at the first and the last logged step, the change, paired by seed, and these steps."""
    lines: list[list[object]] = []
    for (condition, arm), own in table.groupby(["condition", "arm"], sort=False):
        for name, title in QUANTITIES.items():
            by_seed = own[own["quantity"] == name].pivot(index="seed", columns="step", values="value").dropna(axis=1)
            if by_seed.empty:
                continue
            first, last = by_seed[by_seed.columns[0]], by_seed[by_seed.columns[-1]]
            forms = ((first, ".3f"), (last, ".3f"), (last - first, "+.3f"))
            cells = [with_error(*mean_and_standard_error(values), form) for values, form in forms]
            lines.append([condition, f"`{arm}`", title, *cells, f"{by_seed.columns[0]}, {by_seed.columns[-1]}"])
    return lines


def draw_credit(table: pd.DataFrame, path: Path) -> None:
    """A panel per quantity, a line per arm over the steps."""
    rows = table.assign(series=table["arm"], run=table["condition"] + table["seed"].astype(str) + table["arm"])
    shown = {
        textwrap.fill(title.split(" (")[0], 44): rows[rows["quantity"] == name] for name, title in QUANTITIES.items()
    }
    draw_lines(shown, path, looks=looks_of(list(table["arm"].unique())), columns=3)


def draw_profile(table: pd.DataFrame, path: Path) -> None:
    """A panel per arm: mean weight of each tenth of the reasoning, at the first and at the last logged step."""
    arms = list(table["arm"].unique())
    rows = table[table["quantity"].str.startswith("part_")]
    rows = rows.assign(part=rows["quantity"].str.removeprefix("part_").astype(int))
    steps = {f"step {step}": step for step in (rows["step"].min(), rows["step"].max())}
    of_steps = numbered(list(steps))
    with picture(path, 3.6) as figure:
        grid = panels(figure, [label(arm) for arm in arms], len(arms), sharey=True)
        for axes, arm in zip(grid, arms, strict=True):
            for (name, look), dashes in zip(of_steps.items(), ("--", "-"), strict=False):
                own = rows[(rows["arm"] == arm) & (rows["step"] == steps[name])]
                mean = own.groupby("part")["value"].mean()
                axes.plot((mean.index + 0.5) / PARTS, mean, linewidth=1.6, linestyle=dashes, label=name, **style(look))
            axes.axhline(1.0, color=QUIET, linewidth=0.8, linestyle=":")
            axes.set_xticks(np.linspace(0, 1, 3))
            axes.set_xlabel("place in the reasoning")
        figure.supylabel("mean weight")
        legend_below(figure, series_of(grid, of_steps))
