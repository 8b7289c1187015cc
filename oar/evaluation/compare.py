"""Two evaluations of the same problems, paired: is one model better, and how sure is that?

The bootstrap resamples problems with both models' scores, so what makes a problem hard for both is no part of the spread.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oar.common.errors import DataError
from oar.evaluation.evaluate import MEAN
from oar.statistics.accuracy import accuracy
from oar.statistics.intervals import Estimate

PASS = ["benchmark", "metric", "k", "temperature"]
COLUMNS = [*PASS, "problem_id", "sample", "gold", "correct"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `EvaluationResult.save` wrote: a row per graded completion, and by benchmark where the problems come from."""

    folder: Path
    samples: pd.DataFrame
    data: Mapping[str, Mapping[str, object]]


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder. Raises DataError where there is none, or it is not whole."""
    samples, record = folder / "samples.parquet", folder / "evaluation.json"
    for file in (samples, record):
        if not file.is_file():
            raise DataError(f"{folder} must hold a finished evaluation, but has no {file.name}: evaluate first.")
    try:
        data = json.loads(record.read_text(encoding="utf-8"))["provenance"]["data"]
        frame = pd.read_parquet(samples, columns=COLUMNS)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} must hold an evaluation of this version, but: {str(error).splitlines()[0]}"
        ) from error
    return Evaluation(folder, frame, data)


def compare(a: Evaluation, b: Evaluation) -> pd.DataFrame:
    """a - b in percentage points, a row per benchmark and metric (avg@k, greedy pass@1) and one for their mean.

    `better` and `worse` count the problems that a solves more and less often. Raises DataError where a and b differ in
    benchmarks, problems, gold answers, the data's revision, k or temperature, or where samples are missing.
    """
    check_same(a, b)
    rows: list[dict[str, Any]] = []
    for metric in a.samples["metric"].unique():
        one, other = problem_scores(a, metric), problem_scores(b, metric)
        found = [_row(name, metric, one[name], other[name]) for name in one]
        difference = _difference(one, other)
        ks = {row["k"] for row in found}
        mean = {key: sum(row[key] for row in found) / len(found) for key in ("a", "b", "difference")}
        counts = {key: sum(row[key] for row in found) for key in ("n", "better", "worse")}
        k = ks.pop() if len(ks) == 1 else None
        rows += [
            *found,
            {
                **{"benchmark": MEAN, "metric": metric, "k": k, **mean, **counts},
                **{"ci_low": difference.low, "ci_high": difference.high},
            },
        ]
    return pd.DataFrame(rows).astype({"k": "Int64"})


@dataclass(frozen=True, slots=True)
class ProblemScores:
    """How often each problem of a benchmark was solved in k samples."""

    k: int
    scores: "pd.Series[float]"  # 0-100, by problem


def problem_scores(evaluation: Evaluation, metric: str) -> dict[str, ProblemScores]:
    """By benchmark, of one metric (avg@k or greedy pass@1)."""
    found = {}
    chosen = evaluation.samples[evaluation.samples["metric"] == metric]
    for benchmark, samples in chosen.groupby("benchmark", sort=False):
        scores = 100.0 * samples.groupby("problem_id", sort=True)["correct"].mean()
        found[str(benchmark)] = ProblemScores(int(samples["k"].iloc[0]), scores)
    return found


def _difference(a: Mapping[str, ProblemScores], b: Mapping[str, ProblemScores]) -> Estimate:
    """Of the mean over benchmarks; both are taken to be of one training seed."""
    arrays = {name: np.array([[a[name].scores], [b[name].scores]]) for name in a}
    return accuracy(arrays, by_problem=True).difference()


def _row(benchmark: str, metric: str, a: ProblemScores, b: ProblemScores) -> dict[str, Any]:
    differences, found = a.scores - b.scores, _difference({benchmark: a}, {benchmark: b})
    return {
        "benchmark": benchmark,
        "metric": metric,
        "k": a.k,
        "a": float(a.scores.mean()),
        "b": float(b.scores.mean()),
        "difference": float(differences.mean()),
        "ci_low": found.low,
        "ci_high": found.high,
        "n": len(differences),
        "better": int((differences > 0).sum()),
        "worse": int((differences < 0).sum()),
    }


def check_same(a: Evaluation, b: Evaluation) -> None:
    """Raises DataError where a and b are not of the same problems, from the same data, sampled in the same way."""
    ours, theirs = _passes(a), _passes(b)
    if set(ours) != set(theirs):
        only = sorted(map(str, set(ours) ^ set(theirs)))
        raise _unlike(a, b, f"only one of them has (benchmark, metric, k, temperature) {only[0]}")
    for key, gold in ours.items():
        benchmark = str(key[0])
        if set(gold) != set(theirs[key]):
            problem = sorted(set(gold) ^ set(theirs[key]))[0]
            raise _unlike(a, b, f"only one of them has problem {problem!r} of {benchmark}")
        for problem, answer in gold.items():
            if answer != theirs[key][problem]:
                raise _unlike(a, b, f"problem {problem!r} of {benchmark} has other gold answers")
        if _content(a.data.get(benchmark)) != _content(b.data.get(benchmark)):
            raise _unlike(a, b, f"{benchmark} comes from other data, as evaluation.json says")


def _passes(evaluation: Evaluation) -> dict[tuple[Any, ...], dict[str, str]]:
    """By pass the gold answer of each problem. Raises DataError where a problem has not exactly k samples."""
    found = {}
    for key, samples in evaluation.samples.groupby(PASS, sort=False):
        counts = samples.groupby("problem_id")["sample"].nunique()
        k = int(samples["k"].iloc[0])
        if (counts != k).any() or len(samples) != k * len(counts):
            raise DataError(
                f"{evaluation.folder} must hold {k} samples of each problem of {key[0]}, but has {len(samples)} of "
                f"{len(counts)}: evaluate again."
            )
        found[tuple(key)] = dict(zip(samples["problem_id"], samples["gold"], strict=True))
    return found


def _content(origin: Mapping[str, object] | None) -> dict[str, object]:
    """What was read; how a file was called says nothing about it."""
    return {key: value for key, value in (origin or {}).items() if key != "file"}


def _unlike(a: Evaluation, b: Evaluation, how: str) -> DataError:
    return DataError(f"{a.folder} and {b.folder} cannot be compared: {how}; evaluate both in the same way.")
