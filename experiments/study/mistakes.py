"""What goes wrong in the completions of a study's final evaluations: the kinds of mistake, by condition and arm, and how a page
shows them.

Of the embedded task only, whose problems say how they are computed.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from oar.analysis.reports.figures import legend_below, panels, picture, series_of
from oar.analysis.reports.methods import label, numbered
from oar.analysis.reports.page import with_error
from oar.common.errors import DataError
from oar.evaluation.evaluate import SAMPLED_METRIC
from oar.runs.folder import Run
from oar.statistics.intervals import mean_and_standard_error
from oar.tasks.problem import Problem
from oar.tasks.words import MISTAKES, evaluation_set, mistake, tier_named, written_out

RIGHT = "right"
WRITTEN_OUT = "written out"


def mistakes_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Long: condition, arm, seed, kind, share in percent of the sampled completions, mean of tiers.

    A kind is RIGHT or one of MISTAKES, which add up to 100, or WRITTEN_OUT: every equation has its result. A kind that a run
    does not have is missing. Raises DataError where a run has no completions, or those of other problems.
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


def mistakes_shares(table: pd.DataFrame) -> list[list[str]]:
    """Cells: the share of RIGHT, of each kind of MISTAKES and of WRITTEN_OUT, a line per condition and arm."""
    lines = []
    for (condition, arm), own in table.groupby(["condition", "arm"], sort=False):
        by_seed = own.pivot(index="seed", columns="kind", values="share").fillna(0.0)
        by_seed = by_seed.reindex(columns=[RIGHT, *MISTAKES, WRITTEN_OUT], fill_value=0.0)
        shares = [with_error(*mean_and_standard_error(by_seed[kind])) for kind in by_seed]
        lines.append([str(condition), f"`{arm}`", *shares])
    return lines


def draw_mistakes(table: pd.DataFrame, path: Path) -> None:
    """A panel per condition, a bar per arm: the share of wrong completions, by kind; the mean over seeds."""
    conditions, arms = list(table["condition"].unique()), list(table["arm"].unique())
    means = table.pivot_table(index=["condition", "arm", "seed"], columns="kind", values="share", fill_value=0.0)
    means = means.groupby(["condition", "arm"]).mean()
    kinds = numbered([kind for kind in MISTAKES if kind in means])
    told = {kind: look._replace(label=f"{kind}: {MISTAKES[kind]}") for kind, look in kinds.items()}
    with picture(path, 1.2 + 0.2 * len(kinds) + 0.3 * len(arms)) as figure:
        grid = panels(figure, conditions, len(conditions), sharex=True, sharey=True)
        for axes, condition in zip(grid, conditions, strict=True):
            left = pd.Series(0.0, index=arms)
            for kind, look in told.items():
                share = means.loc[condition, kind].reindex(arms).fillna(0.0)
                axes.barh(range(len(arms)), share, left=left, height=0.7, label=look.label, color=look.colour)
                left += share
            axes.set_xlabel("wrong completions (%)")
            axes.grid(visible=False, axis="y")
        grid[0].set_yticks(range(len(arms)), [label(arm) for arm in arms])
        grid[0].set_ylim(len(arms) - 0.5, -0.5)
        legend_below(figure, series_of(grid, told))
