"""A finished evaluation read back: its graded completions, the scores of its problems, and whether another is of the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oar.common.errors import DataError

PASS = ["benchmark", "metric", "k", "temperature"]
COLUMNS = [*PASS, "problem_id", "sample", "gold", "correct"]
RIGHT = ["benchmark", "metric", "k", "problem_id", "right"]
LIMITS = ["top_p", "max_new_tokens"]
Scores = Mapping[str, "pd.Series[float]"]  # by benchmark the percent correct of each problem, by its id


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `EvaluationResult.save` wrote: a row per graded completion, and by benchmark where the problems come from.

    `limits`: by benchmark and metric its LIMITS; earlier versions did not write them.
    """

    folder: Path
    samples: pd.DataFrame
    data: Mapping[str, Mapping[str, object]]
    limits: Mapping[tuple[str, str], Mapping[str, float]]


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in a folder. Raises DataError where there is none, or it is not whole."""
    samples, record = folder / "samples.parquet", folder / "evaluation.json"
    for file in (samples, record):
        if not file.is_file():
            raise DataError(f"{folder} must hold a finished evaluation, but has no {file.name}: evaluate first.")
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
        data = written["provenance"]["data"]
        limits = {
            (row["benchmark"], row["metric"]): {name: row[name] for name in LIMITS}
            for row in written["results"]
            if set(LIMITS) <= set(row)
        }
        frame = pd.read_parquet(samples, columns=COLUMNS)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} must hold an evaluation of this version, but: {str(error).splitlines()[0]}"
        ) from error
    return Evaluation(folder, frame, data, limits)


def right_samples(evaluation: Evaluation) -> pd.DataFrame:
    """How many of a problem's k samples are right: RIGHT."""
    of = evaluation.samples.groupby(["benchmark", "metric", "k", "problem_id"], sort=False)["correct"]
    return of.sum().reset_index(name="right")[RIGHT]


def problem_scores(problems: pd.DataFrame, metric: str) -> Scores:
    """Of `right_samples` those of one metric (avg@k or greedy pass@1), percent."""
    chosen = problems[problems["metric"] == metric]
    return {
        str(name): (100.0 * of["right"] / of["k"]).set_axis(of["problem_id"]).sort_index()
        for name, of in chosen.groupby("benchmark", sort=False)
    }


def check_same(a: Evaluation, b: Evaluation) -> None:
    """Raises DataError where a and b are not of the same problems, from the same data, sampled in the same way."""
    ours, theirs = _passes(a), _passes(b)
    if set(ours) != set(theirs):
        only = sorted(map(str, set(ours) ^ set(theirs)))
        raise _unlike(a, b, f"only one of them has (benchmark, metric, k, temperature) {only[0]}")
    for name, metric in a.limits.keys() & b.limits.keys():
        for limit, value in a.limits[name, metric].items():
            if value != b.limits[name, metric][limit]:
                raise _unlike(a, b, f"{metric} of {name} has another {limit}")
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
