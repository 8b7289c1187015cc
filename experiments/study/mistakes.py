"""What goes wrong in the completions of a study's final evaluations: the kinds of mistake, by condition and arm.

Of the embedded task only, whose problems say how they are computed.
"""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from oar.common.errors import DataError
from oar.evaluation.evaluate import SAMPLED_METRIC
from oar.runs.folder import Run
from oar.tasks.problem import Problem
from oar.tasks.words import evaluation_set, mistake, tier_named, written_out

RIGHT = "right"
WRITTEN_OUT = "written out"


def mistakes_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Long: condition, arm, seed, kind, share in percent of the sampled completions, mean of tiers.

    A kind is RIGHT or one of MISTAKES, which add up to 100, or WRITTEN_OUT: every equation has its result. A kind that a run
    does not have is missing. Raises DataError where a run kept no completions, or those of other problems.
    """
    rows = []
    for run in runs:
        completions = judged_completions(run)
        kinds = completions.groupby("benchmark")["kind"].value_counts(normalize=True).unstack(fill_value=0)
        shares = {**kinds.mean(), WRITTEN_OUT: completions.groupby("benchmark")["written_out"].mean().mean()}
        of = {"condition": run.condition, "arm": run.arm, "seed": run.seed}
        rows += [{**of, "kind": kind, "share": 100 * share} for kind, share in shares.items()]
    return pd.DataFrame(rows)


def judged_completions(run: Run) -> pd.DataFrame:
    """A row per sampled completion of the final evaluation: benchmark, kind, written_out. Right is what the grader called so."""
    path = run.folder / "samples.parquet"
    if not path.is_file():
        raise DataError(f"{run.folder} must keep its graded completions, but has no samples.parquet: run it again.")
    samples = pd.read_parquet(path, columns=["benchmark", "problem_id", "metric", "gold", "completion", "correct"])
    samples = samples[samples["metric"] == SAMPLED_METRIC]
    rows = []
    for benchmark, own in samples.groupby("benchmark", sort=False):
        problems = _final_problems(str(benchmark), own["problem_id"].nunique())
        for row in own.to_dict("records"):
            problem = problems.get(row["problem_id"])
            if problem is None or problem.answer != row["gold"]:
                raise DataError(
                    f"{path} must hold problems of the embedded task, but {row['problem_id']} is none: set mistakes=false."
                )
            kind = RIGHT if row["correct"] else mistake(problem, row["completion"])
            if kind is None:
                raise DataError(
                    f"{path} calls the answer to {problem.id} wrong, but it is {problem.answer}: run it again."
                )
            rows.append({"benchmark": benchmark, "kind": kind, "written_out": written_out(row["completion"])})
    return pd.DataFrame(rows)


@cache
def _final_problems(benchmark: str, count: int) -> dict[str, Problem]:
    held_out = evaluation_set(tier_named(benchmark), "final", count)
    return {each.problem.id: each.problem for each in held_out}
