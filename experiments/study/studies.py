"""A study: arms (methods and controls) under conditions (one factor changed at a time), each under the same training seeds.

Its runs are trained and evaluated by experiments/train.py; here they are compared. What an arm gains is its difference from the
reference arm under the same condition, paired by training seed and by problem.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.common.errors import DataError
from oar.evaluation.compare import check_same, problem_scores
from oar.evaluation.evaluate import GREEDY_METRIC, MEAN, SAMPLED_METRIC
from oar.runs.folder import Run
from oar.statistics.accuracy import accuracy
from oar.statistics.intervals import RESAMPLES, Estimate, mean_and_standard_error, student_p
from oar.statistics.power import seeds_needed

MEASURED = (SAMPLED_METRIC, GREEDY_METRIC)


@dataclass(frozen=True, slots=True)
class Finished:
    """A run of a study."""

    condition: str
    arm: str
    run: Run


def arm_scores(runs: Sequence[Finished]) -> pd.DataFrame:
    """A row per run, metric of MEASURED and benchmark (MEAN among them): condition, arm, seed, benchmark, metric, k, value, n."""
    frames = [
        one.run.scores.assign(condition=one.condition, arm=one.arm, seed=one.run.seed)[
            ["condition", "arm", "seed", "benchmark", "metric", "k", "value", "n"]
        ]
        for one in runs
    ]
    scores = pd.concat(frames, ignore_index=True).astype({"k": "Int64"})
    return scores[scores["metric"].isin(MEASURED)].reset_index(drop=True)


def differences(runs: Sequence[Finished], *, reference: str) -> pd.DataFrame:
    """A row per condition, metric of MEASURED and arm but the reference: the arm minus the reference, percentage points.

    Columns condition, metric, arm, difference (mean over benchmarks, over the seeds that both have), error (standard error of
    the per-seed differences, NaN for one seed), ENDS (oar.statistics.intervals.Estimate, the same problems and seeds
    drawn for both arms),
    p_bootstrap (two-sided, of the same draws), p (the larger one of that and Student's over seeds), p_holm (for all rows of the
    metric together), seeds, and seeds_needed: how many would show a true difference of this size
    (`oar.statistics.power`; missing for one
    seed). Raises DataError where runs were not evaluated alike, or an arm has no seed in common with the reference.
    """
    rows = []
    for condition in dict.fromkeys(one.condition for one in runs):
        by_arm: dict[str, dict[int, Run]] = {}
        for one in runs:
            if one.condition == condition:
                by_arm.setdefault(one.arm, {})[one.run.seed] = one.run
        if reference not in by_arm:
            raise DataError(f"Condition {condition!r} must have runs of the reference {reference!r}, but has none.")
        for metric in MEASURED:
            for arm in by_arm:
                if arm == reference:
                    continue
                found = _difference(by_arm[arm], by_arm[reference], metric)
                rows.append({"condition": condition, "metric": metric, "arm": arm, **found})
    return with_holm(pd.DataFrame(rows)).astype({"seeds_needed": "Int64"})


def with_holm(table: pd.DataFrame) -> pd.DataFrame:
    """With p_holm, of the p of all rows of a metric."""
    return table.assign(p_holm=table.groupby("metric")["p"].transform(lambda values: holm(values.to_numpy())))


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """p values (tests,) adjusted for their number by Holm's step-down method (Holm 1979).

    The smallest is multiplied by the number of tests, the next by one less, and so on; none falls below the one before it.
    """
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(stepped)
    return adjusted


def _difference(arm: Mapping[int, Run], reference: Mapping[int, Run], metric: str) -> dict[str, Any]:
    seeds = sorted(set(arm) & set(reference))
    if not seeds:
        raise DataError(f"An arm and its reference must share a seed, but have {sorted(arm)} and {sorted(reference)}.")
    runs = [[side[one] for one in seeds] for side in (arm, reference)]
    found = accuracy(_problem_arrays(runs, metric), by_problem=True)
    assert found.draws is not None
    drawn = np.round(
        found.draws[:, 0] - found.draws[:, 1], 9
    )  # what sums leave behind their last digits is no difference
    # A tail that no draw reached is not impossible: one draw is counted to each.
    tail = (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (RESAMPLES + 1)
    return compared(found.difference(), found.by_seed[:, 0] - found.by_seed[:, 1], min(1.0, 2 * tail))


def compared(found: Estimate, by_seed: NDArray[np.float64], p_bootstrap: float) -> dict[str, Any]:
    """A row of `differences` but condition, metric, arm and p_holm; by_seed: (seeds,)."""
    _, error = mean_and_standard_error(by_seed)
    needed = None if error is None else seeds_needed(found.value, error * np.sqrt(len(by_seed)))
    return {
        "difference": found.value,
        "error": np.nan if error is None else error,
        **found.ends(),
        "p_bootstrap": p_bootstrap,
        "p": p_bootstrap if error is None else max(p_bootstrap, student_p(by_seed)),
        "seeds": len(by_seed),
        "seeds_needed": needed,
    }


def _problem_arrays(runs: Sequence[Sequence[Run]], metric: str) -> dict[str, NDArray[np.float64]]:
    """Of each benchmark the scores (arms, seeds, problems) of runs[arm][seed], 0 to 100."""
    first = runs[0][0].evaluation
    found: list[list[Any]] = []
    for arm in runs:
        found.append([])
        for run in arm:
            if run.evaluation is None or first is None:
                raise DataError(f"{run.folder} must hold samples.parquet to be paired by problem: run it again.")
            check_same(first, run.evaluation)
            found[-1].append(problem_scores(run.evaluation, metric))
    names = list(found[0][0])
    return {name: np.array([[run[name].scores.to_numpy() for run in arm] for arm in found]) for name in names}


def mean_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Of `arm_scores` the mean over benchmarks: condition, metric, arm, value, error (standard error over seeds), seeds."""
    rows = []
    chosen = scores[scores["benchmark"] == MEAN]
    for (condition, metric, arm), own in chosen.groupby(["condition", "metric", "arm"], sort=False):
        value, error = mean_and_standard_error(own["value"])
        rows.append([condition, metric, arm, value, np.nan if error is None else error, len(own)])
    return pd.DataFrame(rows, columns=["condition", "metric", "arm", "value", "error", "seeds"])
