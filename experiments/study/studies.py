"""A study: arms (methods and controls) under conditions (one factor changed at a time), each under the same training seeds.

Its runs are trained and evaluated by experiments/train.py; here they are compared. What an arm gains is its difference from the
reference arm under the same condition, paired by training seed and by problem.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from oar.analysis.arms import METRICS, committed, compared, differences, with_holm
from oar.common.errors import DataError
from oar.evaluation.evaluate import MEAN
from oar.evaluation.graded import check_same
from oar.runs.folder import Run
from oar.statistics.intervals import ENDS, PERCENT

SCORES = ["condition", "arm", "seed", "benchmark", "metric", "k", "value", "n"]
NAMED = ["condition", "metric", "arm"]
DIFFERENCES = [*NAMED, "difference", "error", *ENDS, "p_bootstrap", "p", "seeds", "seeds_needed", "p_holm"]


def arm_scores(runs: Sequence[Run]) -> pd.DataFrame:
    """A row (SCORES) per run, metric of METRICS and benchmark, MEAN among them."""
    frames = [run.scores.assign(condition=run.condition, arm=run.arm, seed=run.seed)[SCORES] for run in runs]
    scores = pd.concat(frames, ignore_index=True).astype({"k": "Int64"})
    return scores[scores["metric"].isin(METRICS)].reset_index(drop=True)


def arm_differences(runs: Sequence[Run], *, reference: str) -> pd.DataFrame:
    """A row (DIFFERENCES) per condition, metric and arm but the reference: `oar.analysis.arms.compared`, percentage points.

    p_holm is p adjusted for all rows of the metric. Raises DataError where runs were not evaluated alike or have no scores of
    single problems, or where an arm has no seed in common with the reference.
    """
    for condition in dict.fromkeys(run.condition for run in runs):
        own = [run for run in runs if run.condition == condition]
        arms = {arm: {run.seed for run in own if run.arm == arm} for arm in dict.fromkeys(run.arm for run in own)}
        if reference not in arms:
            raise DataError(f"Condition {condition!r} must have runs of the reference {reference!r}, but has none.")
        for arm, seeds in arms.items():
            if not seeds & arms[reference]:
                raise DataError(f"{arm} and {reference} must share a seed, but have {seeds} and {arms[reference]}.")
        for run in own:
            if run.evaluation is None or own[0].evaluation is None:
                raise DataError(f"{run.folder} must hold samples.parquet to be paired by problem: run it again.")
            check_same(own[0].evaluation, run.evaluation)
    return _whole(differences(runs, reference))


def judged_differences(scores: pd.DataFrame, table: pd.DataFrame, *, reference: str) -> pd.DataFrame:
    """`arm_differences` from committed tables: `arm_scores` and the ends of the bootstrap in an earlier table."""
    values = scores[scores["benchmark"] == MEAN].set_index([*NAMED, "seed"])["value"].sort_index()
    rows = []
    for row in table.to_dict("records"):
        named = {key: row[key] for key in NAMED}
        sides = [values[row["condition"], row["metric"], arm] for arm in (row["arm"], reference)]
        by_seed = (sides[0] - sides[1]).dropna().to_numpy(np.float64)
        ends = (row["bootstrap_low"], row["bootstrap_high"])
        name = ", ".join(named.values())
        found = committed(name, by_seed, row["difference"], ends, within=(-PERCENT, PERCENT))
        rows.append({**named, **compared(found, by_seed, row["p_bootstrap"])})
    return _whole(pd.DataFrame(rows))


def pair_differences(runs: Sequence[Run], pairs: Sequence[Sequence[str]]) -> pd.DataFrame:
    """`arm_differences` of the first arm of each pair from its second, the `reference`, under the conditions that both were run
    under; p_holm over all pairs of a metric."""
    arms = pd.DataFrame({"condition": [run.condition for run in runs], "arm": [run.arm for run in runs]})
    tables = []
    for pair in pairs:
        conditions = set.intersection(*(set(arms.loc[arms["arm"] == arm, "condition"]) for arm in pair))
        both = [run for run in runs if run.arm in pair and run.condition in conditions]
        tables.append(arm_differences(both, reference=pair[1]).assign(reference=pair[1]))
    return with_holm(pd.concat(tables, ignore_index=True))


def judged_pairs(scores: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """`pair_differences` from committed tables."""
    tables = [
        judged_differences(scores, own, reference=str(reference)).assign(reference=reference)
        for reference, own in table.groupby("reference", sort=False)
    ]
    return with_holm(pd.concat(tables, ignore_index=True))


def logged_means(runs: Sequence[Run], names: Sequence[str]) -> pd.DataFrame:
    """condition, arm, seed, name, value: the mean over the steps at which a run logged the metric of that name, if it did."""
    return pd.DataFrame(
        [
            {
                "condition": run.condition,
                "arm": run.arm,
                "seed": run.seed,
                "name": name,
                "value": run.metrics[name].mean(),
            }
            for run in runs
            for name in names
            if name in run.metrics
        ],
        columns=["condition", "arm", "seed", "name", "value"],  # of a metric that no run has: a table without rows
    )


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    return with_holm(table)[DIFFERENCES].astype({"seeds_needed": "Int64"})
