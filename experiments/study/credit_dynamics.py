"""Where a run's weights sat while it trained: does credit concentrate, and on what? (docs/METHOD.md §7.1)

Of each step whose completions a run kept (samples.jsonl), the weights of those that have an answer and an advantage.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.common.errors import DataError
from oar.runs.folder import Run
from oar.runs.tracking import SAMPLES

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
    """Long: condition, arm, seed, step, quantity, value, the mean over a step's kept completions; runs of weight 1 left out."""
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
    """Of each kept completion with an answer and an advantage: its step, weights of its reasoning, causal positions."""
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
