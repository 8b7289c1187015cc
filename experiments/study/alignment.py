"""Did a run's credit push its digits where the reward wants them, and is that why an arm is soon (docs/SHEETS.md)?"""

import math
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import OmegaConf

from oar.analysis.reports.figures import legend_below, panels, picture, series_of, style
from oar.analysis.reports.methods import looks_of
from oar.analysis.reports.page import records
from oar.analysis.thresholds import best_runs
from oar.config import build
from oar.learner.samples import Sample, read_steps
from oar.runs.folder import START_WEIGHTS, Run
from oar.runs.tracking import SAMPLES
from oar.statistics.attribution import Floats, spearman

ALIGNMENT = "alignment"  # of a run
FIRST_STEPS = 50  # that are looked at: runs end at different ones, and late in a run little is left to learn
FEWEST_ARMS = 4  # of a regime: a rank correlation of fewer says nothing
COLUMNS = 3  # of panels


def alignment(run: Run) -> float:
    """The mean over the steps that completions were kept of, up to FIRST_STEPS, of `step_alignment`; NaN where none says."""
    sheet = OmegaConf.select(run.settings, "data.source.sheet")
    if sheet is None or not (run.folder / SAMPLES).exists():
        return float("nan")
    table = build("data.source.sheet", OmegaConf.to_container(sheet)).right
    kept = [samples for step, samples in read_steps(run.folder).items() if step <= FIRST_STEPS]
    found = [step_alignment(samples, table) for samples in kept]
    return float(np.nanmean(found)) if np.isfinite(found).any() else float("nan")


def step_alignment(samples: Sequence[Sample], table: Mapping[str, str]) -> float:
    """Cosine of the pushes of a step with those that each digit deserves, over the reasoning tokens of all its completions.

    A token's push is its advantage times 1 - p, where p is the probability that the policy drew it with: the gradient of the loss
    at its own logit, but for the sign. A token of which the policy is sure has none, whatever credit it gets. A digit that the
    reward counts deserves 1 - p where `table` (digit by key) has it, else -(1 - p); any other token deserves nothing.

    0 where the step pushes nothing; NaN where no digit deserves anything.
    """
    own = [_pushes(sample, table) for sample in samples]
    pushed, deserved = (np.concatenate(side) for side in zip(*own, strict=True))
    size = np.linalg.norm(pushed) * np.linalg.norm(deserved)
    if size == 0:
        return 0.0 if deserved.any() else float("nan")
    return float(pushed @ deserved / size)


def _pushes(sample: Sample, table: Mapping[str, str]) -> tuple[Floats, Floats]:
    """(T,) twice, of the reasoning tokens: the push of each, and the one it deserves."""
    size = -np.expm1(np.array(sample.old_logprobs))  # 1 - p
    right = np.isin(np.arange(size.size), sample.marks["causal"]) * _hits(sample, table)
    kept = slice(sample.reasoning_tokens)
    return (np.array(sample.advantages) * size)[kept], (right * size)[kept]


def _hits(sample: Sample, table: Mapping[str, str]) -> NDArray[np.int64]:
    """(T,): 1 for a digit that `table` has for the word before it, -1 for another one, 0 for what is no digit."""
    found = np.zeros(len(sample.tokens), dtype=np.int64)
    # A word may be of several tokens, and a token of several digits: these stand in the text in the same order.
    tokens = [token for token, text in enumerate(sample.tokens) for sign in text if sign in string.digits]
    for token, digit in zip(tokens, re.finditer(r"[0-9]", sample.completion), strict=True):
        words = sample.completion[: digit.start()].split()
        found[token] = 1 if words and table.get(words[-1]) == digit[0] else -1
    return found


def aligned_arms(costs: pd.DataFrame) -> pd.DataFrame:
    """A row per condition and arm: of its `best_runs` that have one the mean ALIGNMENT, the median of steps, and how many seeds.

    Of a condition those runs alone that began with the same weights, where several did those of the most arms: from another base
    model every arm may be sooner. A run that does not get there counts with the steps that it ran. costs: steps.csv.
    """
    known = best_runs(costs).dropna(subset=ALIGNMENT).astype({START_WEIGHTS: object})
    known = known.fillna({START_WEIGHTS: "not said"})  # by older runs
    kept = [known.head(0)]
    for _, own in known.groupby("condition", sort=False):
        arms = own.groupby(START_WEIGHTS)["arm"].nunique()
        kept.append(own[own[START_WEIGHTS] == arms.idxmax()])
    by_arm = pd.concat(kept).groupby(["condition", "arm"], sort=False)
    return by_arm.agg(
        **{ALIGNMENT: (ALIGNMENT, "mean")}, steps=("steps", "median"), seeds=("seed", "nunique")
    ).reset_index()


def explained(arms: pd.DataFrame) -> dict[str, tuple[int, float]]:
    """By condition how many arms `aligned_arms` has, and the rank correlation of their alignment with how few steps they need.

    Of conditions with FEWEST_ARMS or more.
    """
    return {
        str(condition): (len(own), spearman(own[ALIGNMENT], -own["steps"]))
        for condition, own in arms.groupby("condition", sort=False)
        if len(own) >= FEWEST_ARMS
    }


def draw_alignment(arms: pd.DataFrame, path: Path) -> None:
    """Of `aligned_arms` a panel per condition with several arms: steps over alignment, a mark per arm."""
    shown = {str(name): own for name, own in arms.groupby("condition", sort=False) if len(own) > 1}
    looks, least = looks_of(list(arms["arm"].unique())), min(0.0, float(arms[ALIGNMENT].min()))
    with picture(path, height=2 + 3 * math.ceil(len(shown) / COLUMNS)) as figure:
        axes = panels(figure, [f"{condition}: steps" for condition in shown], COLUMNS)
        for one, own in zip(axes, shown.values(), strict=True):
            for row in records(own):
                look = looks[row["arm"]]
                one.plot(row[ALIGNMENT], row["steps"], linestyle="", markersize=8, label=look.label, **style(look))
            one.set_xlabel("alignment")
            one.margins(y=0.1)  # else the highest mark is cut
            one.set(xlim=(least - 0.05, 1.05), ylim=(0, None))
        legend_below(figure, series_of(axes, looks))
