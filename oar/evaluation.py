"""Evaluation: greedy pass@1 and avg@k over benchmarks, with bootstrap intervals over problems.

Knows nothing of HTTP, vLLM or Hydra: it is given what generates, encodes, decodes, parses and grades. Values are
percentages (0-100). `mean` is the unweighted mean over benchmarks, as the paper averages its five.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import pandas as pd

from oar.errors import ConfigError, DataError
from oar.files import atomic_path, write_text_atomic
from oar.rollout.types import Rollout, Sampling
from oar.seeding import derive_seed
from oar.statistics import bootstrap_interval, macro_bootstrap_interval
from oar.tasks.problem import Problem

MEAN = "mean"
GREEDY_METRIC = "pass@1"
SAMPLED_METRIC = "avg@k"


class Generate(Protocol):
    """Draws `sampling.n` completions for each prompt: outer list prompts, in the order given, inner list n."""

    def __call__(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int
    ) -> Sequence[Sequence[Rollout]]:
        """`EngineClient.generate` with its expected version bound is one."""


class Graded(Protocol):
    """From problems to prompts and from completions to verdicts; `oar.tasks.task.Task` is one."""

    def encode_prompt(self, problem: Problem) -> list[int]:
        """The prompt's token ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def parse(self, completion: str) -> str | None:
        """The completion's final answer: shown, never graded by itself."""

    def grade(self, problem: Problem, completion: str) -> bool:
        """The verdict."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One graded completion. `answer` is what was parsed from it (None: nothing parsable), `correct` the verdict."""

    problem: Problem
    index: int  # 0 .. k-1 within the problem
    prompt: str  # as the model saw it, template included
    completion: str
    answer: str | None
    correct: bool
    completion_tokens: int
    finish_reason: str


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """`summary`: a row per benchmark and metric; `samples`: a row per graded completion."""

    summary: pd.DataFrame
    samples: pd.DataFrame

    def metrics(self) -> dict[str, float]:
        """For a tracker: {"eval/words1/avg@1": 43.0, ..., "eval/mean/avg@1": 41.2}; greedy is "eval/words1/pass@1"."""
        rows = zip(
            self.summary["benchmark"], self.summary["metric"], self.summary["k"], self.summary["value"], strict=True
        )
        return {
            f"eval/{benchmark}/{metric.replace('@k', f'@{k}')}": float(value) for benchmark, metric, k, value in rows
        }

    def table(self) -> str:
        """The summary as aligned text, for a terminal."""
        columns = ["benchmark", "metric", "k", "temperature", "value", "ci_low", "ci_high", "n"]
        return str(self.summary[columns].round(1).to_string(index=False))

    def save(self, folder: Path, provenance: Mapping[str, object]) -> None:
        """Write samples.parquet, evaluation.csv and evaluation.json (with `provenance`), each atomically, json last."""
        with atomic_path(folder / "samples.parquet") as path:
            self.samples.to_parquet(path, index=False)
        with atomic_path(folder / "evaluation.csv") as path:
            self.summary.to_csv(path, index=False)
        content = {"results": self.summary.to_dict("records"), "provenance": dict(provenance)}
        write_text_atomic(folder / "evaluation.json", json.dumps(content, indent=2, allow_nan=False) + "\n")


def evaluate(
    generate: Generate,
    problems_by_benchmark: Mapping[str, Sequence[Problem]],
    *,
    task: Graded,
    sampling: Sampling,
    seed: int,
) -> EvaluationResult:
    """Generate, grade, summarise: temperature 0 gives greedy pass@1, any other temperature avg@k with k = sampling.n.

    Raises ConfigError for a temperature and n that do not fit together, DataError for a benchmark without
    problems or with an id twice, and when the graded samples are not exactly problems x k, so that a lost completion
    can never count as a wrong one.
    """
    if sampling.temperature == 0 and sampling.n != 1:
        raise ConfigError(f"Greedy evaluation (temperature 0) draws one completion a problem, got n={sampling.n}.")
    if sampling.n < 1 or sampling.temperature < 0:
        raise ConfigError(f"Evaluation needs n >= 1 and temperature >= 0, got n={sampling.n}, {sampling.temperature}.")
    if not problems_by_benchmark:
        raise DataError("Evaluation needs at least one benchmark, got none.")
    graded: dict[str, list[Sample]] = {}
    for benchmark, problems in problems_by_benchmark.items():
        _check_problems(benchmark, problems)
        prompts = [task.encode_prompt(problem) for problem in problems]
        groups = generate(prompts, sampling, seed=derive_seed(seed, "evaluation", benchmark))
        _check_groups(benchmark, prompts, groups, sampling.n)
        graded[benchmark] = [
            _grade(problem, index, rollout, task)
            for problem, group in zip(problems, groups, strict=True)
            for index, rollout in enumerate(group)
        ]
    return EvaluationResult(_summary(graded, sampling, seed), _samples_frame(graded, sampling))


def concatenate(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """One result out of several, e.g. greedy pass@1 and avg@k of the same model."""
    return EvaluationResult(
        pd.concat([result.summary for result in results], ignore_index=True),
        pd.concat([result.samples for result in results], ignore_index=True),
    )


def _check_problems(benchmark: str, problems: Sequence[Problem]) -> None:
    if benchmark == MEAN:
        raise DataError(f"No benchmark may be called {MEAN!r}: the mean over benchmarks has that name.")
    if not problems:
        raise DataError(f"Benchmark {benchmark} has no problems.")
    ids = pd.Series([problem.id for problem in problems])
    if ids.duplicated().any():
        raise DataError(f"Benchmark {benchmark} has the problem id {ids[ids.duplicated()].iloc[0]!r} more than once.")


def _check_groups(
    benchmark: str, prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Rollout]], k: int
) -> None:
    samples = sum(len(group) for group in groups)
    if len(groups) != len(prompts) or any(len(group) != k for group in groups):
        raise DataError(
            f"Benchmark {benchmark} needs {len(prompts)} problems x {k} samples = {len(prompts) * k} completions, "
            f"got {samples} in {len(groups)} groups; no score is computed from an incomplete set."
        )
    for index, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        if any(rollout.prompt_ids != tuple(prompt) for rollout in group):
            raise DataError(f"Benchmark {benchmark}: the completions at position {index} belong to another prompt.")


def _grade(
    problem: Problem,
    index: int,
    rollout: Rollout,
    task: Graded,
) -> Sample:
    text = task.decode(rollout.completion_ids)
    return Sample(
        problem=problem,
        index=index,
        prompt=task.decode(rollout.prompt_ids),
        completion=text,
        answer=task.parse(text),
        correct=bool(task.grade(problem, text)),
        completion_tokens=len(rollout.completion_ids),
        finish_reason=rollout.finish_reason,
    )


def _metric(sampling: Sampling) -> dict[str, str | int | float]:
    name = GREEDY_METRIC if sampling.temperature == 0 else SAMPLED_METRIC
    return {"metric": name, "k": sampling.n, "temperature": float(sampling.temperature)}


def _summary(graded: Mapping[str, Sequence[Sample]], sampling: Sampling, seed: int) -> pd.DataFrame:
    per_problem = {
        benchmark: [
            100.0 * sum(sample.correct for sample in samples[start : start + sampling.n]) / sampling.n
            for start in range(0, len(samples), sampling.n)
        ]
        for benchmark, samples in graded.items()
    }
    rows: list[dict[str, object]] = []
    for benchmark, samples in graded.items():
        scores = per_problem[benchmark]
        low, high = bootstrap_interval(scores, seed=derive_seed(seed, "bootstrap", benchmark))
        rows.append(
            {
                "benchmark": benchmark,
                **_metric(sampling),
                "value": sum(scores) / len(scores),
                "ci_low": low,
                "ci_high": high,
                "n": len(scores),
                "samples": len(samples),
                "truncated_share": sum(sample.finish_reason == "length" for sample in samples) / len(samples),
                "mean_completion_tokens": sum(sample.completion_tokens for sample in samples) / len(samples),
            }
        )
    frame = pd.DataFrame(rows)
    low, high = macro_bootstrap_interval(list(per_problem.values()), seed=derive_seed(seed, "bootstrap", MEAN))
    macro = {
        "benchmark": MEAN,
        **_metric(sampling),
        "value": frame["value"].mean(),
        "ci_low": low,
        "ci_high": high,
        "n": frame["n"].sum(),
        "samples": frame["samples"].sum(),
        "truncated_share": frame["truncated_share"].mean(),
        "mean_completion_tokens": frame["mean_completion_tokens"].mean(),
    }
    return pd.concat([frame, pd.DataFrame([macro])], ignore_index=True)


def _samples_frame(graded: Mapping[str, Sequence[Sample]], sampling: Sampling) -> pd.DataFrame:
    rows = []
    for benchmark, samples in graded.items():
        for sample in samples:
            row = asdict(sample)
            problem = row.pop("problem")
            identity = {"benchmark": benchmark, "problem_id": problem["id"], "sample": row.pop("index")}
            rows.append({**identity, **_metric(sampling), "gold": problem["answer"], **row})
    return pd.DataFrame(rows)
