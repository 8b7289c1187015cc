"""What claims are about, measured on runs, each with its interval.

Runs come by arm and, within an arm, by seed, the same seeds in each: differences and ratios are paired, so what two methods owe
to the same seed or the same hard problem is no part of their interval.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.arms import Arms, over_seeds, scores_of
from oar.analysis.claims.claims import Claim
from oar.common.errors import OarError
from oar.common.provenance import machines
from oar.evaluation.evaluate import MEAN
from oar.runs.collapse import COLLAPSE_SHARE, collapse_step
from oar.runs.folder import Run
from oar.statistics.accuracy import Accuracy, accuracy
from oar.statistics.intervals import (
    Estimate,
    estimate,
    median_bootstrap,
    percentile_interval,
    ratio_interval,
    student_interval,
)

MEASURED = ("value", "low", "high", "unit", "interval_over", "benchmarks", "problems", "k")
Array = NDArray[np.float64]


class NotRunError(OarError):
    """A claim cannot be tested on these runs; the text says what is missing."""


def measured(found: Estimate, unit: str, facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """MEASURED: the estimate in its unit.

    Of accuracy also the benchmarks, how many problems they have together, and the samples of each problem (of each benchmark's,
    where they differ).
    """
    ends = {"value": found.value, "low": found.low, "high": found.high, "unit": unit, "interval_over": found.over}
    return ends | {"benchmarks": "", "problems": None, "k": ""} | dict(facts or {})


@dataclass(frozen=True, slots=True)
class Quantity:
    """In words, by the names of its `arms`, so many, and measured: (claim, metric, runs by arm) to `measured`.

    `on_accuracy`: it depends on the metric of accuracy; `metric` is "" for the others. `usable`: which of the runs it can be
    measured on; a verdict counts the seeds of these. Both raise NotRunError where the runs do not have the quantity.
    """

    text: str
    arms: int
    measure: Callable[[Claim, str, Arms], dict[str, Any]]
    on_accuracy: bool = False
    usable: Callable[[Arms], Arms] = lambda arms: arms


def accuracy_of_sets(metric: str, arms: Arms, sets: Mapping[str, int]) -> tuple[Accuracy, dict[str, Any]]:
    """Of the benchmarks in `sets`, each with so many problems, or of all where it is empty; and the facts of `measured`.

    Raises NotRunError where a benchmark is not there whole.
    """
    rows = _benchmarks(sets, metric, arms[0][0])
    scores, by_problem = scores_of(metric, arms)
    k = [int(one) for one in rows["k"]]
    facts = {
        "benchmarks": ", ".join(rows.index),
        "problems": int(rows["n"].sum()),
        "k": str(k[0]) if len(set(k)) == 1 else ", ".join(map(str, k)),
    }
    return accuracy({name: scores[name] for name in rows.index}, by_problem=by_problem), facts


def _benchmarks(sets: Mapping[str, int], metric: str, run: Run) -> pd.DataFrame:
    """k and n of the benchmarks that are asked for. Raises NotRunError where they are not there whole."""
    rows = run.scores[(run.scores["metric"] == metric) & (run.scores["benchmark"] != MEAN)].set_index("benchmark")
    if rows.empty:
        raise NotRunError(f"needs {metric}")
    for name, problems in sets.items():
        if name not in rows.index:
            raise NotRunError(f"needs the benchmark {name}")
        if (found := int(rows["n"][name])) != problems:
            raise NotRunError(f"needs all {problems} problems of {name}, these runs have {found}")
    return rows.loc[list(sets)] if sets else rows


def _score(claim: Claim, metric: str, arms: Arms) -> dict[str, Any]:
    found, facts = accuracy_of_sets(metric, arms, claim.sets)
    return measured(found.first(), "%", facts)


def _difference(claim: Claim, metric: str, arms: Arms) -> dict[str, Any]:
    found, facts = accuracy_of_sets(metric, arms, claim.sets)
    return measured(found.difference(), "points", facts)


def _share(claim: Claim, metric: str, arms: Arms) -> dict[str, Any]:
    """Of the second arm's gain over the third, what the first one has. Raises NotRunError where there is no such gain.

    Over seeds it is Fieller's interval (1954, "Some problems in interval estimation"): the shares at which Student's interval of
    what is left of the first gain holds 0.
    """
    found, facts = accuracy_of_sets(metric, arms, claim.sets)
    if found.draws is None:
        raise NotRunError("needs samples.parquet of every run: a share of a gain is drawn by problems")
    gain = found.linear(lambda scores: scores[..., 1] - scores[..., 2])
    if gain.low <= 0:
        _, gaining, base = claim.arms
        gained = f"{gain.value:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}] points"
        raise NotRunError(f"{gaining} gains {gained} over {base}, not clearly more than 0: there is no gain to keep")

    def share(scores: Array) -> Array:
        return 100 * (scores[..., 0] - scores[..., 2]) / (scores[..., 1] - scores[..., 2])

    # All draws but 2.5 % at most: the others have no share.
    bootstrap = percentile_interval(share(found.draws[found.draws[:, 1] > found.draws[:, 2]]))
    gains = found.by_seed[:, :2] - found.by_seed[:, 2:]
    student = ratio_interval(*gains.T) if len(gains) > 1 else None
    scaled = None if student is None else (100 * student[0], 100 * student[1])
    return measured(estimate(float(share(found.by_seed.mean(axis=0))), bootstrap, scaled), "%", facts)


def _overhead(_claim: Claim, _metric: str, arms: Arms) -> dict[str, Any]:
    """Ratio of the median seconds of a training step under each seed, geometric mean over seeds: a slow first step does not
    count, and machines may differ between seeds.

    Over seeds it is Student's interval of the logarithm of each seed's ratio.
    """
    seconds = _logged(arms, lambda run: run.timings["total"])
    draws = median_bootstrap(seconds)
    by_seed, student = np.log(np.divide(*np.median(seconds, axis=2))), None
    if len(by_seed) > 1:
        low, high = student_interval(by_seed)
        student = exp(low), exp(high)
    bootstrap = percentile_interval(draws[:, 0] / draws[:, 1])
    return measured(estimate(exp(by_seed.mean()), bootstrap, student, units="steps"), "x")


def _on_one_machine(arms: Arms) -> Arms:
    """The seeds under which all arms ran on one machine. Raises NotRunError where there is none."""
    alike = [runs for runs in zip(*arms, strict=True) if len({tuple(machines(run.provenance)) for run in runs}) == 1]
    if not alike:
        raise NotRunError("needs runs of one seed on one machine: seconds of different ones are no ratio")
    return list(zip(*alike, strict=True))


def _reward(_claim: Claim, _metric: str, arms: Arms) -> dict[str, Any]:
    """Training reward, mean of all steps, of the first arm minus the second: slower learning has less of it."""
    rewards = _logged(arms, lambda run: run.metrics["train/reward_mean"])
    return measured(over_seeds(np.subtract(*rewards.mean(axis=2))), "reward")


def _collapse(_claim: Claim, _metric: str, arms: Arms) -> dict[str, Any]:
    """Steps by which the entropy of the first arm collapses later. One that never does counts as the step after the last."""
    entropy = _logged(arms, lambda run: run.metrics["train/entropy"])
    steps = entropy.shape[2]
    found = np.array([[collapse_step(curve) or steps + 1 for curve in runs] for runs in entropy], dtype=np.float64)
    if (found > steps).all():
        raise NotRunError(
            f"no entropy falls below {COLLAPSE_SHARE:g} of its start in these {steps} steps: none collapses"
        )
    return measured(over_seeds(np.subtract(*found)), "steps")


def _logged(arms: Arms, series: Callable[[Run], "pd.Series[float]"]) -> Array:
    """A value of every training step, (arms, seeds, steps), at the steps that all runs have."""
    by_run = [series(run).dropna() for runs in arms for run in runs]
    frame = pd.concat(by_run, axis=1, join="inner")
    return frame.to_numpy(dtype=np.float64).T.reshape(len(arms), len(arms[0]), -1)


QUANTITIES = {
    "accuracy": Quantity("accuracy of {0}", 1, _score, on_accuracy=True),
    "difference": Quantity("accuracy, {0} − {1}", 2, _difference, on_accuracy=True),
    "share": Quantity("accuracy, ({0} − {2}) / ({1} − {2})", 3, _share, on_accuracy=True),
    "overhead": Quantity("seconds of a step, {0} / {1}", 2, _overhead, usable=_on_one_machine),
    "collapse": Quantity("step of entropy's collapse, {0} − {1}", 2, _collapse),
    "reward": Quantity("training reward, {0} − {1}", 2, _reward),
}
