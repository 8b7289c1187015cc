"""Evaluation: greedy pass@1, and avg@k, pass@k and maj@k of samples, with bootstrap intervals over problems.

Knows nothing of HTTP, vLLM or Hydra: it is given what draws, parses and grades. Values are percentages (0-100), those of rewards
as they are. `mean` is the unweighted mean over benchmarks, as the paper averages its five.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from oar.common.errors import ConfigError, DataError
from oar.common.files import atomic_path, write_text_atomic
from oar.common.seeding import derive_seed
from oar.config.evaluation import Sampling
from oar.evaluation.draw import Asked, Completion
from oar.evaluation.pass_at_k import Group, majority_score, pass_at_k, sizes
from oar.statistics.accuracy import accuracy
from oar.statistics.intervals import NO_INTERVAL
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import ANSWER, Completed, RewardTerms
from oar.tasks.verifier.grade import Verdict

MEAN = "mean"
GREEDY_METRIC = "pass@1"
SAMPLED_METRIC = "avg@k"
METRICS = {SAMPLED_METRIC: "avg@{k} (sampled at temperature {temperature})", GREEDY_METRIC: "pass@1 (greedy)"}
PASS_METRIC = "pass@k"
MAJORITY_METRIC = "maj@k"
REWARD_METRICS = {SAMPLED_METRIC: "reward@k", GREEDY_METRIC: "reward"}  # means, not percent


class Draw(Protocol):
    """Draws `sampling.n` completions for each problem: by set, then by problem, in the order given."""

    def __call__(self, asked: Sequence[Asked]) -> Sequence[Sequence[Sequence[Completion]]]:
        """`oar.evaluation.draw.draw` with its source bound is one."""


class Graded(Protocol):
    """From completions to verdicts; `oar.tasks.task.Task` is one."""

    def grade_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> Sequence[Verdict]:
        """The verdict of each completion, its final answer with it."""

    def parsed(self, answer: str) -> str | None:
        """How an answer is read before it is compared, for people to look at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One graded completion. `answer` stands in it as its final one (None: there is none), `outcome` how it was judged.

    `parsed_gold` and `parsed_answer` are what was compared.
    """

    problem: Problem
    index: int  # 0 .. k-1 within the problem
    prompt: str  # as the model saw it, template included
    completion: str
    answer: str | None
    parsed_gold: str | None
    parsed_answer: str | None
    correct: bool
    reward: float
    outcome: str  # of oar.tasks.verifier.grade.Verdict
    completion_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """`summary`: a row per benchmark and metric; `samples`: a row per graded completion."""

    summary: pd.DataFrame
    samples: pd.DataFrame

    def metrics(self) -> dict[str, float]:
        """For a tracker: {"eval/words1/avg@1": 43.0, ..., "eval/mean/avg@1": 41.2}; greedy is "eval/words1/pass@1".

        The mean over benchmarks of different k is "eval/mean/avg@k".
        """
        rows = zip(
            self.summary["benchmark"], self.summary["metric"], self.summary["k"], self.summary["value"], strict=True
        )
        return {
            f"eval/{benchmark}/{metric if pd.isna(k) else metric.replace('@k', f'@{k}')}": float(value)
            for benchmark, metric, k, value in rows
        }

    def table(self) -> str:
        """The summary as aligned text, for a terminal."""
        columns = ["benchmark", "metric", "k", "temperature", "value", "ci_low", "ci_high", "n"]
        shown = self.summary[columns].round(dict.fromkeys(("value", "ci_low", "ci_high"), 1)).astype(object)
        is_reward = self.summary["metric"].isin(REWARD_METRICS.values())
        shown.loc[is_reward, "value"] = self.summary.loc[is_reward, "value"].round(3)
        return str(shown.where(shown.notna(), "").to_string(index=False))

    def overview(self) -> str:
        """The same in short: a line per benchmark, a column per metric with its interval. Of pass@k there must be one k."""
        digits = self.summary["metric"].map(lambda metric: 3 if metric in REWARD_METRICS.values() else 1)
        bounds = self.summary[["value", "ci_low", "ci_high"]].itertuples(index=False)
        shown = [
            f"{v:.{n}f}" + ("" if pd.isna(low) else f" [{low:.{n}f}, {high:.{n}f}]")  # a mean reward has no interval
            for (v, low, high), n in zip(bounds, digits, strict=True)
        ]
        table = self.summary.assign(shown=shown).pivot_table(
            "shown", "benchmark", "metric", aggfunc="first", sort=False
        )
        return str(table.rename_axis(index=None, columns=None).to_string(na_rep=""))

    def save(self, folder: Path, provenance: Mapping[str, object]) -> None:
        """Write samples.parquet, evaluation.csv and evaluation.json (with `provenance`), each atomically, json last."""
        with atomic_path(folder / "samples.parquet") as path:
            self.samples.to_parquet(path, index=False)
        with atomic_path(folder / "evaluation.csv") as path:
            self.summary.to_csv(path, index=False)
        results = [
            {name: None if pd.isna(value) else value for name, value in row.items()}
            for row in self.summary.to_dict("records")
        ]
        content = {"results": results, "provenance": dict(provenance)}
        write_text_atomic(folder / "evaluation.json", json.dumps(content, indent=2, allow_nan=False) + "\n")


def evaluate(
    draw: Draw,
    problems_by_benchmark: Mapping[str, Sequence[Problem]],
    *,
    task: Graded,
    sampling: Mapping[str, Sampling],
    seed: int,
    group: Group | None = None,
    reward: RewardTerms = ANSWER,
) -> EvaluationResult:
    """Draw, grade, summarise: temperature 0 gives greedy pass@1, any other temperature avg@k with k = `sampling[...].n`.

    `sampling` is that of each benchmark. With `group`, which says what answers of a problem are the same, sampled completions
    also give unbiased pass@k for smaller k and maj@k. Where `reward` is more than right or wrong, be it that a problem has a
    scorer of its own, its mean stands beside the accuracy.

    Raises ConfigError for a temperature and n that do not fit together, DataError for a benchmark without
    problems or with an id twice, and when the graded samples are not exactly problems x k, so that a lost completion
    can never count as a wrong one.
    """
    if not problems_by_benchmark:
        raise DataError("Evaluation needs at least one benchmark, got none.")
    chosen = {benchmark: sampling[benchmark] for benchmark in problems_by_benchmark}
    _check_sampling(chosen)
    for benchmark, problems in problems_by_benchmark.items():
        _check_problems(benchmark, problems)
    asked = [
        Asked(problems, chosen[benchmark], derive_seed(seed, "evaluation", benchmark))
        for benchmark, problems in problems_by_benchmark.items()
    ]
    graded: dict[str, list[list[Sample]]] = {}
    for (benchmark, problems), groups in zip(problems_by_benchmark.items(), draw(asked), strict=True):
        _check_groups(benchmark, len(problems), groups, chosen[benchmark].n)
        graded[benchmark] = _grade(problems, groups, task, reward, derive_seed(seed, "reward", benchmark))
    rewarded = reward != ANSWER or any(one.scored_as for problems in problems_by_benchmark.values() for one in problems)
    return EvaluationResult(_summary(graded, chosen, group, rewarded), _samples_frame(graded, chosen))


def concatenate(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """One result out of several, e.g. greedy pass@1 and avg@k of the same model."""
    return EvaluationResult(
        pd.concat([result.summary for result in results], ignore_index=True),
        pd.concat([result.samples for result in results], ignore_index=True),
    )


def _check_sampling(sampling: Mapping[str, Sampling]) -> None:
    for one in sampling.values():
        if one.temperature == 0 and one.n != 1:
            raise ConfigError(f"Greedy evaluation (temperature 0) draws one completion a problem, got n={one.n}.")
        if one.n < 1 or one.temperature < 0:
            raise ConfigError(f"Evaluation needs n >= 1 and temperature >= 0, got n={one.n}, {one.temperature}.")
    if len({one.temperature == 0 for one in sampling.values()}) != 1:
        raise ConfigError("One evaluation is greedy on every benchmark or on none: their mean would mix two metrics.")


def _check_problems(benchmark: str, problems: Sequence[Problem]) -> None:
    if benchmark == MEAN:
        raise DataError(f"No benchmark may be called {MEAN!r}: the mean over benchmarks has that name.")
    if not problems:
        raise DataError(f"Benchmark {benchmark} has no problems.")
    ids = pd.Series([problem.id for problem in problems])
    if ids.duplicated().any():
        raise DataError(f"Benchmark {benchmark} has the problem id {ids[ids.duplicated()].iloc[0]!r} more than once.")


def _check_groups(benchmark: str, problems: int, groups: Sequence[Sequence[Completion]], k: int) -> None:
    samples = sum(len(group) for group in groups)
    if len(groups) != problems or any(len(group) != k for group in groups):
        raise DataError(
            f"Benchmark {benchmark} needs {problems} problems x {k} samples = {problems * k} completions, "
            f"got {samples} in {len(groups)} groups; no score is computed from an incomplete set."
        )


def _grade(
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Completion]],
    task: Graded,
    reward: RewardTerms,
    seed: int,
) -> list[list[Sample]]:
    """All at once, so that a pool of graders shares the work."""
    owners = [problem for problem, group in zip(problems, groups, strict=True) for _ in group]
    drawn = [completion for group in groups for completion in group]
    verdicts = task.grade_all(owners, [one.text for one in drawn])
    completed = [
        Completed(problem, one.prompt, one.text, verdict, one.tokens, one.finish_reason == "length")
        for problem, one, verdict in zip(owners, drawn, verdicts, strict=True)
    ]
    graded = zip(completed, (earned.total for earned in reward(completed, seed)), strict=True)
    return [
        [_sample(index, completion, *next(graded), task) for index, completion in enumerate(group)] for group in groups
    ]


def _sample(index: int, completion: Completion, graded: Completed, reward: float, task: Graded) -> Sample:
    problem, verdict = graded.problem, graded.verdict
    return Sample(
        problem=problem,
        index=index,
        prompt=completion.prompt,
        completion=completion.text,
        answer=verdict.answer,
        parsed_gold=task.parsed(problem.answer),
        parsed_answer=None if verdict.answer is None else task.parsed(verdict.answer),
        correct=verdict.correct,
        reward=reward,
        outcome=verdict.outcome,
        completion_tokens=completion.tokens,
        finish_reason=completion.finish_reason,
    )


Score = Callable[[Sequence[Sample]], float]  # of one problem, 0-100; of rewards any number


def _summary(
    graded: Mapping[str, Sequence[Sequence[Sample]]],
    sampling: Mapping[str, Sampling],
    group: Group | None,
    rewarded: bool,
) -> pd.DataFrame:
    """A row per benchmark and metric, after those of a metric its mean over benchmarks where each of them has it."""
    greedy = next(iter(sampling.values())).temperature == 0
    metric = GREEDY_METRIC if greedy else SAMPLED_METRIC
    own = {benchmark: one.n for benchmark, one in sampling.items()}
    rows = _metric_rows(metric, own, _correct, graded, sampling)
    if rewarded:
        rows += _metric_rows(REWARD_METRICS[metric], own, _mean_reward, graded, sampling)
    if group is not None and not greedy:
        for k in sorted({k for n in own.values() for k in sizes(n)}):
            having = {benchmark: k for benchmark, n in own.items() if k in sizes(n)}
            rows += _metric_rows(PASS_METRIC, having, _pass_at(k), graded, sampling)
        several = {benchmark: n for benchmark, n in own.items() if n > 1}
        rows += _metric_rows(MAJORITY_METRIC, several, _majority(group), graded, sampling)
    frame = pd.DataFrame(rows)
    return frame.astype({name: "Int64" for name in ("k", "max_new_tokens") if frame[name].isna().any()})


def _correct(samples: Sequence[Sample]) -> float:
    return 100.0 * sum(sample.correct for sample in samples) / len(samples)


def _mean_reward(samples: Sequence[Sample]) -> float:
    return sum(sample.reward for sample in samples) / len(samples)


def _pass_at(k: int) -> Score:
    return lambda samples: 100.0 * pass_at_k(len(samples), sum(sample.correct for sample in samples), k)


def _majority(group: Group) -> Score:
    def score(samples: Sequence[Sample]) -> float:
        labels = iter(group([sample.answer for sample in samples if sample.answer is not None]))
        votes = [None if sample.answer is None else next(labels) for sample in samples]
        return 100.0 * majority_score(votes, [sample.correct for sample in samples])

    return score


def _metric_rows(
    metric: str,
    k: Mapping[str, int],
    score: Score,
    graded: Mapping[str, Sequence[Sequence[Sample]]],
    sampling: Mapping[str, Sampling],
) -> list[dict[str, object]]:
    """The rows of one metric for the benchmarks that `k` names."""
    # In the order of their ids, as oar.evaluation.graded reads them back: one accuracy has one interval.
    by_id = {benchmark: sorted(graded[benchmark], key=lambda samples: samples[0].problem.id) for benchmark in k}
    per_problem = {benchmark: [score(samples) for samples in groups] for benchmark, groups in by_id.items()}
    rows: list[dict[str, object]] = []
    for benchmark, scores in per_problem.items():
        low, high = _interval(metric, {benchmark: scores})
        samples = [sample for group in graded[benchmark] for sample in group]
        rows.append(
            {
                "benchmark": benchmark,
                "metric": metric,
                "k": k[benchmark],
                "temperature": float(sampling[benchmark].temperature),
                "top_p": float(sampling[benchmark].top_p),
                "max_new_tokens": sampling[benchmark].max_new_tokens,
                "value": sum(scores) / len(scores),
                "ci_low": low,
                "ci_high": high,
                "n": len(scores),
                "samples": len(samples),
                "truncated_share": sum(sample.finish_reason == "length" for sample in samples) / len(samples),
                "mean_completion_tokens": sum(sample.completion_tokens for sample in samples) / len(samples),
            }
        )
    if set(k) != set(graded):
        return rows
    frame = pd.DataFrame(rows)
    low, high = _interval(metric, per_problem)
    macro: dict[str, object] = {
        "benchmark": MEAN,
        "metric": metric,
        **{name: _common(frame[name]) for name in ("k", "temperature", "top_p", "max_new_tokens")},
        "value": frame["value"].mean(),
        "ci_low": low,
        "ci_high": high,
        "n": frame["n"].sum(),
        "samples": frame["samples"].sum(),
        "truncated_share": frame["truncated_share"].mean(),
        "mean_completion_tokens": frame["mean_completion_tokens"].mean(),
    }
    return [*rows, macro]


def _interval(metric: str, per_problem: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Of the mean over benchmarks of one model: over problems. Of a mean reward, which is no percentage, none is known."""
    if metric in REWARD_METRICS.values():
        return NO_INTERVAL
    found = accuracy({benchmark: np.array([[of]]) for benchmark, of in per_problem.items()}, by_problem=True).first()
    return found.low, found.high


def _common(values: "pd.Series[float]") -> float | None:
    """What all benchmarks have, or None."""
    return values.iloc[0] if values.nunique() == 1 else None


def _samples_frame(graded: Mapping[str, Sequence[Sequence[Sample]]], sampling: Mapping[str, Sampling]) -> pd.DataFrame:
    rows = []
    for benchmark, groups in graded.items():
        one = sampling[benchmark]
        drawn = {
            "metric": GREEDY_METRIC if one.temperature == 0 else SAMPLED_METRIC,
            "k": one.n,
            "temperature": float(one.temperature),
        }
        for sample in (sample for group in groups for sample in group):
            row = asdict(sample)
            problem = row.pop("problem")
            identity = {"benchmark": benchmark, "problem_id": problem["id"], "sample": row.pop("index")}
            rows.append({**identity, **drawn, "gold": problem["answer"], **row})
    return pd.DataFrame(rows)
