"""Is a method's difference from GRPO real, and how many seeds would show it?

Pairs are made by training seed and by problem, so scores of single problems are needed. A run holds them in
`samples.parquet`, which is too large to be committed; `scores.parquet` beside a table keeps what is needed of all its runs.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oar.analysis.reports.methods import BASE, CONTROL, GRPO, ORACLE, kind, label
from oar.analysis.reports.tables import table_lines
from oar.common.errors import DataError
from oar.evaluation.compare import read_evaluation
from oar.evaluation.evaluate import MEAN
from oar.statistics.accuracy import accuracy
from oar.statistics.intervals import CONFIDENCE, ENDS
from oar.statistics.power import POWER, sd_interval, seeds_needed, smallest_shown

SCORES = "scores.parquet"
KEYS = ["method", "seed", "benchmark", "metric"]
COLUMNS = [*KEYS, "k", "problem_id", "right"]  # right: how many of the k samples of a problem
NEEDED = ["seeds_needed", "seeds_needed_from", "seeds_needed_to"]
DIFFERENCES = [
    *("metric", "method", "kind", "against", "benchmark", "seeds", "problems", "difference"),
    *ENDS,
    *("sd", *NEEDED, "smallest_shown"),
]
READING = f"""Each line is a method minus GRPO, percentage points of the mean over benchmarks, paired by training seed. The
{CONFIDENCE:.0%} interval to judge by covers the two beside it: a bootstrap that draws seeds and problems, where scores of
single problems were kept, and Student's, over seeds alone. Few seeds can make the first much too narrow (results/coverage) and
make the second very wide. An interval that holds 0 shows no difference, and one seed says nothing of other seeds.

*Seeds to show it*: how many seeds a paired two-sided test at {1 - CONFIDENCE:.0%} needs to find a true difference of the size
that was found, with a chance of {POWER:.0%}; in brackets the same at both ends of the {CONFIDENCE:.0%} interval of *sd over
seeds*, which few seeds hardly tell. *Smallest shown*: the smallest true difference that the seeds at hand find with that chance.
All of this is for the same problems: other problems add a spread of their own."""
MARKED = {
    CONTROL: "A *control* keeps the learner and takes from the credit what it is said to know: what it gains is not credit's.",
    ORACLE: "An *oracle* is told by the task which tokens matter; no method can know more.",
}
NO_CONTROL = "No control was run beside these methods (`methods=` names them)."


def read_problem_scores(runs: Mapping[tuple[str, int], Path], kept: Path, scores: pd.DataFrame) -> pd.DataFrame:
    """Right samples by problem (COLUMNS), of each run by (method, seed) whose folder has samples.parquet or that `kept` holds.

    `kept`: scores.parquet as it was written before; `scores`: KEYS and `value`, percent, which the problems must average to.
    Raises DataError where they do not: a file is of another run.
    """
    earlier = pd.read_parquet(kept) if kept.is_file() else pd.DataFrame(columns=COLUMNS)
    if set(COLUMNS) - set(earlier.columns):
        raise DataError(f"{kept} must have the columns {', '.join(COLUMNS)}: delete it, and make the table again.")
    frames = []
    for (method, seed), folder in runs.items():
        found = earlier[(earlier["method"] == method) & (earlier["seed"] == seed)]
        if (folder / "samples.parquet").is_file():
            samples = read_evaluation(folder).samples
            by_problem = samples.groupby(["benchmark", "metric", "k", "problem_id"], sort=False)["correct"].sum()
            found = by_problem.reset_index(name="right").assign(method=method, seed=seed)
        frames.append(found[COLUMNS])
    problems = pd.concat(frames, ignore_index=True).astype({"seed": int, "k": int, "right": int})
    _check(problems, scores, kept)
    return problems


def _check(problems: pd.DataFrame, scores: pd.DataFrame, kept: Path) -> None:
    share = 100 * problems["right"] / problems["k"]
    mean = share.groupby([problems[key] for key in KEYS]).mean().rename("mean").reset_index()
    both = mean.merge(scores[scores["benchmark"] != MEAN], on=KEYS, how="left")
    wrong = both[~np.isclose(both["mean"], both["value"].astype(float), atol=1e-6)]
    if len(wrong):
        one = wrong.iloc[0]
        raise DataError(
            f"{one['method']}, seed {one['seed']}: the problems' {one['metric']} on {one['benchmark']} averages to "
            f"{one['mean']:.3f}, but its evaluation.csv says {one['value']:.3f}. samples.parquet of the run, or {kept}, is "
            "of another one: delete it, and make the table again."
        )


def differences(scores: pd.DataFrame, problems: pd.DataFrame) -> pd.DataFrame:
    """A row (DIFFERENCES) per metric, method and benchmark, the mean over benchmarks among them: the method minus GRPO, points.

    `scores`: KEYS and `value`, percent; `problems`: `read_problem_scores`. The difference with its ENDS is an
    `oar.statistics.intervals.Estimate`. Of the mean over benchmarks also `sd`, the standard deviation of the per-seed
    differences, and what
    follows for the number of seeds; `seeds_needed_from` and `_to` are those at the ends of the interval of `sd`. What cannot be
    known (one seed, no scores of problems) is left blank.
    """
    rows: list[dict[str, Any]] = []
    methods = [str(method) for method in scores["method"].unique() if method not in (BASE, GRPO)]
    for metric, method in product(scores["metric"].unique(), methods):
        own, other = (scores[(scores["metric"] == metric) & (scores["method"] == one)] for one in (method, GRPO))
        paired = own.merge(other, on=["benchmark", "seed"], suffixes=("", "_grpo"))
        seeds = sorted(paired["seed"].unique())
        arrays = _arrays(problems[problems["metric"] == metric], method, seeds)
        by_problem = bool(arrays)
        arrays = arrays or _of_benchmarks(paired)
        for benchmark in paired["benchmark"].unique():
            of = paired[paired["benchmark"] == benchmark]
            chosen = arrays if benchmark == MEAN else {benchmark: arrays[benchmark]}
            found = accuracy(chosen, by_problem=by_problem)
            difference, by_seed = found.difference(), found.by_seed[:, 0] - found.by_seed[:, 1]
            rows.append(
                {
                    "metric": metric,
                    "method": method,
                    "kind": kind(method),
                    "against": GRPO,
                    "benchmark": benchmark,
                    "seeds": len(seeds),
                    "problems": int(of["n"].iloc[0]),
                    "difference": difference.value,
                    **difference.ends(),
                    **(_seeds(by_seed) if benchmark == MEAN else {}),
                }
            )
    whole = {"seeds": "Int64", "problems": "Int64", **dict.fromkeys(NEEDED, "Int64")}
    return pd.DataFrame(rows, columns=DIFFERENCES).astype(whole)


def _arrays(problems: pd.DataFrame, method: str, seeds: list[int]) -> dict[str, np.ndarray]:
    """By benchmark the scores of the method and of GRPO, percent, (2, seeds, problems); empty where a run has none.

    Raises DataError where runs were not evaluated on the same problems.
    """
    arrays = {}
    runs = pd.MultiIndex.from_product([[method, GRPO], seeds])
    for benchmark, of in problems[problems["method"].isin([method, GRPO])].groupby("benchmark", sort=False):
        table = (100 * of["right"] / of["k"]).groupby([of["method"], of["seed"], of["problem_id"]]).mean().unstack()
        if not set(runs) <= set(table.index):
            return {}
        table = table.loc[runs]
        if table.isna().to_numpy().any():
            raise DataError(f"{method} and {GRPO} must be evaluated on the same problems of {benchmark}, but are not.")
        arrays[str(benchmark)] = table.to_numpy().reshape(2, len(seeds), -1)
    return arrays


def _of_benchmarks(paired: pd.DataFrame) -> dict[str, np.ndarray]:
    """By benchmark the scores of the method and of GRPO, percent, (2, seeds, 1)."""
    return {
        str(benchmark): of.sort_values("seed")[["value", "value_grpo"]].to_numpy(np.float64).T[..., None]
        for benchmark, of in paired[paired["benchmark"] != MEAN].groupby("benchmark", sort=False)
    }


def _seeds(by_seed: np.ndarray) -> dict[str, Any]:
    count = len(by_seed)
    if count < 2:
        return {}
    difference, sd = float(by_seed.mean()), float(by_seed.std(ddof=1))
    smallest, largest = sd_interval(sd, count)
    needed = [seeds_needed(difference, one) for one in (sd, smallest, largest)]
    return {"sd": sd, **dict(zip(NEEDED, needed, strict=True)), "smallest_shown": smallest_shown(count, sd)}


def differences_section(table: pd.DataFrame) -> str:
    """Markdown: what was compared, how to read it, a line per metric and method."""
    rows = table[table["benchmark"] == MEAN]
    lines = [
        [
            row["metric"],
            label(row["method"]),
            f"{row['difference']:+.1f}",
            _interval(row["low"], row["high"]) + one_seed(row),
            _interval(row["bootstrap_low"], row["bootstrap_high"]),
            _interval(row["student_low"], row["student_high"]),
            "" if pd.isna(row["sd"]) else f"{row['sd']:.2f}",
            str(row["seeds"]),
            needed_text(row),
            "" if pd.isna(row["smallest_shown"]) else f"{row['smallest_shown']:.1f}",
        ]
        for row in rows.to_dict("records")
    ]
    header = [
        "metric",
        "",
        "minus GRPO",
        f"[{CONFIDENCE:.0%}]",
        "of problems and seeds",
        "of seeds alone",
    ]
    header += ["sd over seeds", "seeds", "seeds to show it", "smallest shown"]
    return "\n\n".join(["## Differences from GRPO: are they real?", _reading(rows), table_lines(header, lines)])


def needed_text(row: Mapping[Any, Any]) -> str:
    """`seeds_needed` with its range, as "9 (4 to 310)"; blank where there is no spread to work it out from."""
    if pd.isna(row["sd"]):
        return ""
    one, low, high = ("more than 10,000" if pd.isna(row[name]) else f"{row[name]:,}" for name in NEEDED)
    return one if low == high else f"{one} ({low} to {high})"


def one_seed(row: Mapping[Any, Any]) -> str:
    """What must stand beside an interval that says nothing of other seeds; nothing where it does."""
    return " over problems, one seed" if row["interval_over"] == "problems, one seed" else ""


def _interval(low: float, high: float) -> str:
    return "" if pd.isna(low) else f"[{low:+.1f}, {high:+.1f}]"


def _reading(rows: pd.DataFrame) -> str:
    kinds, tests = set(rows["kind"]), len(rows)
    marked = [text for of, text in MARKED.items() if of in kinds] or [NO_CONTROL]
    chance = f"""These are {tests} comparisons: were there no difference anywhere, about {tests * (1 - CONFIDENCE):.1f} intervals
would still leave 0 out."""
    return "\n\n".join([READING, " ".join([*marked, *([chance] if tests > 1 else [])])])
