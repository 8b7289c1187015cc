"""What claims are about, measured on runs, each with its interval.

Runs come by arm and, within an arm, by seed, the same seeds in each: differences and ratios are paired, so what two methods owe
to the same seed or the same hard problem is no part of their interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.analysis.claims.claims import Claim
from oar.common.errors import OarError
from oar.evaluation.evaluate import MEAN
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

COLLAPSE_WINDOW = 9  # steps of the running mean of the entropy
COLLAPSE_SHARE = 0.2  # an assumption of ours: an entropy below a fifth of what it was at the start has collapsed
Arms = Sequence[Sequence[Run]]
Array = NDArray[np.float64]


class NotRunError(OarError):
    """A claim cannot be tested on these runs; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity of some runs with its 95 % interval [low, high], as `oar.statistics.intervals.Estimate` has it.

    Of accuracy also the benchmarks, how many problems they have together, and the samples of each problem (of each benchmark's,
    where they differ).
    """

    value: float
    low: float
    high: float
    unit: str
    interval_over: str
    benchmarks: str = ""
    problems: int | None = None
    k: str = ""


def measurement(found: Estimate, unit: str, facts: Mapping[str, Any] | None = None) -> Measurement:
    """The estimate in its unit."""
    return Measurement(found.value, found.low, found.high, unit, found.over, **(facts or {}))


@dataclass(frozen=True, slots=True)
class Quantity:
    """In words, by the names of its `arms`, so many, and measured: (claim, metric, runs by arm) to a `Measurement`.

    `on_accuracy`: it depends on the metric of accuracy; `metric` is "" for the others. `measure` raises NotRunError where the
    runs do not have the quantity.
    """

    text: str
    arms: int
    measure: Callable[[Claim, str, Arms], Measurement]
    on_accuracy: bool = False


def accuracy_of(metric: str, arms: Arms, sets: Mapping[str, int] | None = None) -> tuple[Accuracy, dict[str, Any]]:
    """Of the benchmarks in `sets`, each with so many problems, or of all; and what `Measurement` says of them.

    Problems are drawn where every run kept its scores of single ones. Raises NotRunError where a benchmark is not there whole.
    """
    rows = _benchmarks(sets or {}, metric, arms[0][0])
    by_problem = all(run.problem_scores(metric) is not None for runs in arms for run in runs)
    read = _by_problem if by_problem else _by_benchmark
    by_run = [[read(run, metric) for run in runs] for runs in arms]
    scores = {str(name): np.array([[found[name] for found in runs] for runs in by_run]) for name in rows.index}
    k = [int(one) for one in rows["k"]]
    facts = {
        "benchmarks": ", ".join(rows.index),
        "problems": int(rows["n"].sum()),
        "k": str(k[0]) if len(set(k)) == 1 else ", ".join(map(str, k)),
    }
    return accuracy(scores, by_problem=by_problem), facts


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


def _by_problem(run: Run, metric: str) -> dict[str, NDArray[Any]]:
    """By benchmark the score of each problem, in the order of their ids."""
    found = run.problem_scores(metric)
    assert found is not None
    return {name: one.scores.to_numpy() for name, one in found.items()}


def _by_benchmark(run: Run, metric: str) -> dict[str, NDArray[Any]]:
    """By benchmark its score, as if it had one problem."""
    rows = run.scores[run.scores["metric"] == metric]
    return {
        str(name): np.array([value], np.float64) for name, value in zip(rows["benchmark"], rows["value"], strict=True)
    }


def _score(claim: Claim, metric: str, arms: Arms) -> Measurement:
    found, facts = accuracy_of(metric, arms, claim.sets)
    return measurement(found.first(), "%", facts)


def _difference(claim: Claim, metric: str, arms: Arms) -> Measurement:
    found, facts = accuracy_of(metric, arms, claim.sets)
    return measurement(found.difference(), "points", facts)


def _share(claim: Claim, metric: str, arms: Arms) -> Measurement:
    """Of the second arm's gain over the third, what the first one has. Raises NotRunError where there is no such gain.

    Over seeds it is Fieller's interval (1954, "Some problems in interval estimation"): the shares at which Student's interval of
    what is left of the first gain holds 0.
    """
    found, facts = accuracy_of(metric, arms, claim.sets)
    if found.draws is None:
        raise NotRunError("needs samples.parquet of every run: a share of a gain is drawn by problems")
    gain = found.linear(lambda scores: scores[..., 1] - scores[..., 2])
    if gain.low <= 0:
        _, gaining, base = claim.arms
        measured = f"{gain.value:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}] points"
        raise NotRunError(f"{gaining} gains {measured} over {base}, not clearly more than 0: there is no gain to keep")

    def share(scores: Array) -> Array:
        return 100 * (scores[..., 0] - scores[..., 2]) / (scores[..., 1] - scores[..., 2])

    # All draws but 2.5 % at most: the others have no share.
    bootstrap = percentile_interval(share(found.draws[found.draws[:, 1] > found.draws[:, 2]]))
    gains = found.by_seed[:, :2] - found.by_seed[:, 2:]
    student = ratio_interval(*gains.T) if len(gains) > 1 else None
    over_seeds = None if student is None else (100 * student[0], 100 * student[1])
    return measurement(estimate(float(share(found.by_seed.mean(axis=0))), bootstrap, over_seeds), "%", facts)


def _overhead(_claim: Claim, _metric: str, arms: Arms) -> Measurement:
    """Ratio of the median seconds of a training step, over all seeds: a slow first step does not count.

    Over seeds it is Student's interval of the logarithm of each seed's ratio.
    """
    seconds = _logged(arms, lambda run: run.timings["total"])
    draws = median_bootstrap(seconds)
    one, other = np.median(seconds, axis=(1, 2))
    by_seed, student = np.log(np.divide(*np.median(seconds, axis=2))), None
    if len(by_seed) > 1:
        low, high = student_interval(by_seed)
        student = exp(low), exp(high)
    bootstrap = percentile_interval(draws[:, 0] / draws[:, 1])
    return measurement(estimate(float(one / other), bootstrap, student, units="steps"), "x")


def _reward(_claim: Claim, _metric: str, arms: Arms) -> Measurement:
    """Training reward, mean of all steps, of the first arm minus the second: slower learning has less of it."""
    rewards = _logged(arms, lambda run: run.metrics["train/reward_mean"])
    return _over_seeds(rewards.mean(axis=2), "reward")


def _collapse(_claim: Claim, _metric: str, arms: Arms) -> Measurement:
    """Steps by which the entropy of the first arm collapses later. One that never does counts as the step after the last."""
    entropy = _logged(arms, lambda run: run.metrics["train/entropy"])
    steps = entropy.shape[2]
    found = np.array([[collapse_step(curve) or steps + 1 for curve in runs] for runs in entropy], dtype=np.float64)
    if (found > steps).all():
        raise NotRunError(
            f"no entropy falls below {COLLAPSE_SHARE:g} of its start in these {steps} steps: none collapses"
        )
    return _over_seeds(found, "steps")


def collapse_step(entropy: Array) -> int | None:
    """The step at which the policy's entropy, (steps,) from step 1 on, has collapsed; None where it has not.

    It is the last of the first COLLAPSE_WINDOW steps in a row whose mean lies below COLLAPSE_SHARE of the mean at the start.
    """
    if len(entropy) < COLLAPSE_WINDOW:
        return None
    means = np.convolve(entropy, np.full(COLLAPSE_WINDOW, 1 / COLLAPSE_WINDOW), mode="valid")
    (below,) = np.nonzero(means < COLLAPSE_SHARE * means[0])
    return int(below[0]) + COLLAPSE_WINDOW if len(below) else None


def _over_seeds(values: Array, unit: str) -> Measurement:
    """First arm minus second, values (2, seeds)."""
    differences = values[0] - values[1]
    student = student_interval(differences) if len(differences) > 1 else None
    return measurement(estimate(float(differences.mean()), None, student), unit)


def _logged(arms: Arms, series: Callable[[Run], "pd.Series[float]"]) -> Array:
    """A value of every training step, (arms, seeds, steps), at the steps that all runs have."""
    by_run = [series(run).dropna() for runs in arms for run in runs]
    frame = pd.concat(by_run, axis=1, join="inner")
    return frame.to_numpy(dtype=np.float64).T.reshape(len(arms), len(arms[0]), -1)


QUANTITIES = {
    "accuracy": Quantity("accuracy of {0}", 1, _score, on_accuracy=True),
    "difference": Quantity("accuracy, {0} − {1}", 2, _difference, on_accuracy=True),
    "share": Quantity("accuracy, ({0} − {2}) / ({1} − {2})", 3, _share, on_accuracy=True),
    "overhead": Quantity("seconds of a step, {0} / {1}", 2, _overhead),
    "collapse": Quantity("step of entropy's collapse, {0} − {1}", 2, _collapse),
    "reward": Quantity("training reward, {0} − {1}", 2, _reward),
}
