"""What completions earn: the weighted sum of the rewards that a run has chosen, each checked as it comes from its function."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from traceback import extract_tb
from typing import Any

from oar.common.errors import ConfigError, DataError, OarError, did_you_mean
from oar.config import build_function
from oar.tasks import rewards
from oar.tasks.problem import Problem
from oar.tasks.verifier.grade import Verdict


@dataclass(frozen=True, slots=True)
class Completed:
    """A graded completion, as rewards see it."""

    problem: Problem
    prompt: str
    text: str
    verdict: Verdict
    tokens: int
    truncated: bool

    def columns(self) -> dict[str, Any]:
        """Its values of the columns that `oar.tasks.rewards` names; what stands there goes before a data set's own column."""
        problem, verdict = self.problem, self.verdict
        known = ("id", "question", "answer", "solution", "level", "subject", "benchmark")
        return {
            **problem.columns,
            **{name: getattr(problem, name) for name in known},
            "final_answer": verdict.answer,
            "correct": verdict.correct,
            "score": verdict.score,
            "completion_tokens": self.tokens,
            "truncated": self.truncated,
            "prompts": self.prompt,
            "completions": self.text,
        }


@dataclass(frozen=True, slots=True)
class Earned:
    """What one completion earns: by the name of each term, and in all."""

    terms: Mapping[str, float]
    total: float


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """Reward functions (`oar.tasks.rewards` says how they are called) and their weights, by name."""

    functions: Mapping[str, Callable[..., Sequence[float]]]
    weights: Mapping[str, float]

    @classmethod
    def built(cls, reward: Mapping[str, Mapping[str, Any]], allowed: Sequence[str]) -> "RewardTerms":
        """Those of the group `reward`. Raises ConfigError where one cannot be built, takes no **columns or lacks a key's name."""
        functions = {}
        for name, term in reward.items():
            target = {key: value for key, value in term.items() if key != "weight"}
            functions[name] = build_function(f"reward.{name}", target, allowed)
            kinds = {parameter.kind for parameter in inspect.signature(functions[name]).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                raise ConfigError(f"reward.{name} must take **columns, which a data set may have any of, but does not.")
            _check_keys(name, str(target["_target_"]), functions[name])
        return cls(functions, {name: float(term.get("weight", 1.0)) for name, term in reward.items()})

    def __call__(self, completed: Sequence[Completed], seed: int) -> list[Earned]:
        """What each completion earns. Raises DataError, naming the term, where a function fails or gives no such numbers."""
        rows = [one.columns() for one in completed]
        columns = {
            name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
        columns["seed"] = seed  # type: ignore[assignment]  # the one that is no list
        values = {name: _checked(name, function, columns, len(rows)) for name, function in self.functions.items()}
        earned = [{name: found[row] for name, found in values.items()} for row in range(len(rows))]
        return [Earned(terms, sum(self.weights[name] * value for name, value in terms.items())) for terms in earned]


ANSWER = RewardTerms({"answer": rewards.answer}, {"answer": 1.0})


def _check_keys(name: str, target: str, function: Callable[..., Any]) -> None:
    """Raises ConfigError for a key that is no parameter by name: **columns would take it, and nobody would read it."""
    if isinstance(function, partial):
        kinds = {key: parameter.kind for key, parameter in inspect.signature(function.func).parameters.items()}
        known = [key for key, kind in kinds.items() if kind != inspect.Parameter.VAR_KEYWORD]
        for key in function.keywords:
            if key not in known:
                raise ConfigError(
                    f"reward.{name}.{key} must be a parameter of {target}, but is none of {', '.join(known) or 'its own'}"
                    f"{did_you_mean(key, known) or '.'}"
                )


def _checked(name: str, function: Callable[..., Any], columns: Mapping[str, Any], count: int) -> list[float]:
    # What the configuration sets no column of the same name overrides.
    configured = function.keywords if isinstance(function, partial) else {}
    try:
        found = function(**{key: value for key, value in columns.items() if key not in configured})
    except OarError:
        raise
    except Exception as error:  # whatever somebody's reward raises is told with its place
        said = str(error).partition("\n")[0]
        raise DataError(f"reward.{name} raises {type(error).__name__}{_place(function, error)}: {said}") from error
    if not isinstance(found, list | tuple) or len(found) != count:
        came = f"{len(found)} of them" if isinstance(found, list | tuple) else f"a {type(found).__name__}"
        raise DataError(f"reward.{name} must give a list of {count} numbers, one for each completion, but gave {came}.")
    for row, value in enumerate(found):
        if not _is_finite(value):
            raise DataError(
                f"reward.{name} must give finite numbers, but gave {value!r:.40} for completion {row} of {count}."
            )
    return [float(value) for value in found]


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _place(function: Callable[..., Any], error: Exception) -> str:
    """Where in the file of the function, or of the object's class, the error arose; empty where its call already failed."""
    code = function.func if isinstance(function, partial) else function
    file = inspect.getsourcefile(code if inspect.isroutine(code) else type(code))
    inside = [frame for frame in extract_tb(error.__traceback__) if frame.filename == file]
    return f" in {inside[-1].filename}:{inside[-1].lineno}" if inside else ""
