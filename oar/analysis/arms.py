"""Arms compared: methods, controls or levels of a sweep, each run under training seeds; every page shows what is found here.

Arms are paired by training seed and by problem: what two of them owe to the same seed or the same hard problem is no part of the
interval of their difference.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oar.common.errors import DataError
from oar.evaluation.evaluate import GREEDY_METRIC, MEAN, SAMPLED_METRIC
from oar.evaluation.graded import Scores
from oar.runs.folder import Run, check_same_start
from oar.statistics.accuracy import Accuracy, accuracy
from oar.statistics.intervals import RESAMPLES, Estimate, estimate, student_interval, student_p
from oar.statistics.power import sd_interval, seeds_needed, smallest_shown

METRICS = (SAMPLED_METRIC, GREEDY_METRIC)
NEEDED = ("seeds_needed", "seeds_needed_from", "seeds_needed_to")
Array = NDArray[np.float64]
Arms = Sequence[Sequence[Run]]  # by arm, and within an arm by seed, the same seeds in each


def paired(arms: Sequence[Mapping[int, Run]]) -> Arms:
    """The runs of the seeds that all arms have; `arms`: of each its runs by seed.

    Raises DataError where runs of a seed began with other weights (`check_same_start`).
    """
    seeds = sorted(set.intersection(*(set(arm) for arm in arms)))
    for seed in seeds:
        check_same_start([arm[seed] for arm in arms])
    return [[arm[seed] for seed in seeds] for arm in arms]


def scores_of(metric: str, arms: Arms) -> tuple[dict[str, Array], bool]:
    """By benchmark the scores (arms, seeds, problems), percent, and whether they are of problems.

    Where a run has no scores of single problems, they are of whole benchmarks, (arms, seeds, 1). Raises DataError where runs do
    not have the metric, or have other problems.
    """
    scores = [[run.problem_scores(metric) for run in runs] for runs in arms]
    by_problem = all(one for runs in scores for one in runs)
    if not by_problem:
        scores = [[run.benchmark_scores(metric) for run in runs] for runs in arms]
    if not all(one for runs in scores for one in runs):
        raise DataError(f"{arms[0][0].folder} and what it is compared with must have {metric}: evaluate them again.")
    return stacked(scores), by_problem


def stacked(scores: Sequence[Sequence[Scores]]) -> dict[str, Array]:
    """By benchmark an array (arms, seeds, problems) of scores[arm][seed]. Raises DataError where problems differ."""
    first, *others = (one for of_arm in scores for one in of_arm)
    for name, other in product(first, others):
        if name not in other or not first[name].index.equals(other[name].index):
            raise DataError(f"Arms must be evaluated on the same problems of {name}, but are not.")
    return {name: np.array([[one[name].to_numpy() for one in of_arm] for of_arm in scores]) for name in first}


def accuracy_of(metric: str, arms: Arms) -> Accuracy:
    """Percent correct, mean over benchmarks; problems are drawn where every run has scores of single ones."""
    scores, by_problem = scores_of(metric, arms)
    return accuracy(scores, by_problem=by_problem)


def differences(
    runs: Sequence[Run], reference: str, *, metrics: Sequence[str] = METRICS, each_benchmark: bool = False
) -> pd.DataFrame:
    """A row per condition, metric and arm but the reference, which the arm is compared with at the seeds that both have.

    Columns condition, metric, arm, benchmark (MEAN, before it each one where `each_benchmark`), problems, and those of
    `compared`. There is no row where arm and reference have no seed in common.
    """
    rows = []
    for condition in dict.fromkeys(run.condition for run in runs):
        arms: dict[str, dict[int, Run]] = {}
        for run in runs:
            if run.condition == condition:
                arms.setdefault(run.arm, {})[run.seed] = run
        for metric, arm in product(metrics, arms if reference in arms else ()):
            pair = paired([arms[arm], arms[reference]])
            if arm == reference or not pair[0]:
                continue
            scores, by_problem = scores_of(metric, pair)
            for benchmark in (*(scores if each_benchmark else ()), MEAN):
                chosen = scores if benchmark == MEAN else {benchmark: scores[benchmark]}
                named = {"condition": condition, "metric": metric, "arm": arm, "benchmark": benchmark}
                problems = pair[0][0].score(benchmark, metric)["n"]
                rows.append({**named, "problems": problems, **difference(accuracy(chosen, by_problem=by_problem))})
    return pd.DataFrame(rows)


def difference(found: Accuracy) -> dict[str, Any]:
    """`compared` of the first arm minus the second."""
    p = np.nan
    if found.draws is not None:
        # What sums leave behind in their last digits is no difference.
        drawn = np.round(found.draws[:, 0] - found.draws[:, 1], 9)
        # A tail that no draw reached is not impossible: one draw is counted to each.
        tail = (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (RESAMPLES + 1)
        p = min(1.0, 2 * tail)
    return compared(found.difference(), found.by_seed[:, 0] - found.by_seed[:, 1], p)


def compared(found: Estimate, by_seed: Array, p_bootstrap: float) -> dict[str, Any]:
    """The cells of every table of differences; by_seed (seeds,): the differences of the seeds.

    difference, points; ENDS of its interval; p_bootstrap, two-sided; seeds. Of two seeds or more also p (the larger one of that
    and Student's), error (standard error over seeds), sd (standard deviation over seeds), seeds_needed (how many seeds would show
    a true difference of this size, None where no number near does), the same at both ends of the interval of sd, and
    smallest_shown (the smallest true difference that so many seeds show).
    """
    count = len(by_seed)
    row = {"difference": found.value, **found.ends(), "p_bootstrap": p_bootstrap, "p": p_bootstrap, "seeds": count}
    if count < 2:
        return row | dict.fromkeys(("error", "sd", "smallest_shown"), np.nan) | dict.fromkeys(NEEDED)
    sd = float(by_seed.std(ddof=1))
    needed = [seeds_needed(found.value, one) for one in (sd, *sd_interval(sd, count))]
    row |= {"p": float(np.fmax(p_bootstrap, student_p(by_seed))), "error": sd / np.sqrt(count), "sd": sd}
    return row | dict(zip(NEEDED, needed, strict=True)) | {"smallest_shown": smallest_shown(count, sd)}


def with_holm(table: pd.DataFrame) -> pd.DataFrame:
    """With p_holm, of the p of all rows of a metric."""
    return table.assign(p_holm=table.groupby("metric")["p"].transform(lambda values: holm(values.to_numpy())))


def holm(p: Array) -> Array:
    """p values (tests,) adjusted for their number by Holm's step-down method (Holm 1979).

    The smallest is multiplied by the number of tests, the next by one less, and so on; none falls below the one before it.
    """
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(stepped)
    return adjusted


def over_seeds(
    by_seed: Array, bootstrap: tuple[float, float] | None = None, *, within: tuple[float, float] = (-np.inf, np.inf)
) -> Estimate:
    """The mean of values by seed (seeds,), with its interval from Student's and the ends of a bootstrap, where there is one."""
    student = student_interval(by_seed) if len(by_seed) > 1 else None
    return estimate(float(by_seed.mean()), bootstrap, student, within=within)


def committed(
    name: str, by_seed: Array, value: float, bootstrap: tuple[float, float], *, within: tuple[float, float]
) -> Estimate:
    """`over_seeds` of what committed tables hold of `name`. Raises DataError where `value` is not the mean of the seeds'."""
    if not np.isclose(by_seed.mean(), value, atol=1e-6):
        raise DataError(f"The committed tables differ on {name}: they are not of the same runs.")
    return over_seeds(by_seed, None if np.isnan(bootstrap[0]) else bootstrap, within=within)
