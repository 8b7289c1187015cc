"""Procedural problems of reasoning-gym (arXiv 2505.24760): made from a seed, without end, and scored by their data set.

A problem is the first one of its task's data set with a seed of its own. Held-out sets have the seeds below HELD_OUT, training
has those from there on, so they never share one; a task with few different problems may still ask the same twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from oar.common.errors import ConfigError, DataError, MissingPackageError, did_you_mean
from oar.common.seeding import derive_seed
from oar.tasks.problem import Problem, ProblemSet

HELD_OUT = 900_000
SPLITS = ("tuning", "curve", "final")
STRETCH = HELD_OUT // len(SPLITS)  # seeds of a split
TRAINING = 2**30  # seeds from HELD_OUT on where a run's training may begin
ATTEMPTS, ANOTHER = 20, 2**26  # for a prompt that fits, and how far the seed of the next attempt is
CODE, UNSEEDED = "its scorer runs an answer as Python code", "it draws other problems in every process"
REFUSED = {
    "composite": "it is made of others, which data.source.tasks may name",
    "game_of_life_halting": "its scorer calls every answer right",
    "intermediate_integration": CODE,
    "simple_integration": CODE,
    **dict.fromkeys(("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note"), UNSEEDED),
    "word_ladder": UNSEEDED,
}


@dataclass(frozen=True)
class ReasoningGymSource:
    """Training problems of `tasks`, which take turns; `options` of a task by its name, as reasoning-gym calls them.

    Raises ConfigError for a task that is none or cannot be used, and for options it does not have.
    """

    tasks: Sequence[str]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fits: Callable[[Problem], bool] = field(default=lambda problem: True, compare=False)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("data.source.tasks must name at least one task of reasoning-gym, but is empty.")
        check_tasks("data.source.tasks", self.tasks, self.options)

    def problems(self, seed: int, step: int, n: int) -> list[Problem]:
        """The `n` problems of training step `step`. Raises DataError where none of a task fits."""
        first = HELD_OUT + derive_seed(seed, "reasoning_gym") % TRAINING
        return [self._problem(first, position) for position in range(step * n, step * n + n)]

    def fitting(self, fits: Callable[[Problem], bool]) -> "ReasoningGymSource":
        """Another problem of the task takes the place of one that does not fit."""
        return replace(self, fits=fits)

    def origin(self) -> Mapping[str, object]:
        """Tasks, options and the release that makes the problems."""
        return _origin(self.tasks, self.options)

    def _problem(self, first: int, position: int) -> Problem:
        task = self.tasks[position % len(self.tasks)]
        for attempt in range(ATTEMPTS):
            problem = _made(task, self.options.get(task, {}), first + position + attempt * ANOTHER)
            if self.fits(problem):
                return problem
        raise DataError(
            f"{ATTEMPTS} problems of {task} have no prompt that leaves room for rollout.max_new_tokens: raise "
            f"rollout.max_model_len, or make it easier by data.source.options.{task}."
        )


def held_out(task: str, options: Mapping[str, Mapping[str, Any]], split: str, n: int) -> ProblemSet:
    """The first `n` problems of a task's split. Raises ConfigError as the source, and for more than a split has."""
    check_tasks("benchmark.sets", [task], options)
    if n > STRETCH:
        raise ConfigError(f"A held-out set of {task} must have at most {STRETCH:,} problems, but {n:,} are asked for.")
    first = SPLITS.index(split) * STRETCH
    problems = [_made(task, options.get(task, {}), first + number) for number in range(n)]
    return ProblemSet(task, problems, {**_origin([task], options), "split": split})


def check_tasks(key: str, tasks: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ConfigError where `key` names no task of reasoning-gym, one that cannot be used, or one without these options."""
    known = _datasets()
    for task in tasks:
        if task not in known:
            listed = "all are at https://github.com/open-thought/reasoning-gym/blob/main/GALLERY.md."
            raise ConfigError(
                f"{key} must name tasks of reasoning-gym, but names {task!r}{did_you_mean(task, known) or f': {listed}'}"
            )
        if task in REFUSED:
            raise ConfigError(f"{key} must not name {task}, since {REFUSED[task]}: choose another task.")
        try:
            data_set(task, options.get(task, {}), 0)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"The options of {task} must be those of reasoning-gym, but: {error}.") from error


def data_set(task: str, options: Mapping[str, Any], seed: int, size: int = 1) -> Any:
    """reasoning-gym's own, with `size` problems that depend on `seed`. Raises KeyError for a task that is none."""
    made, settings = _datasets()[task]
    return made(settings(**options, seed=seed, size=size))


def _datasets() -> Mapping[str, Any]:
    """Class and options of each data set, by name."""
    try:
        from reasoning_gym.factory import DATASETS  # takes a second, and loads plotting too
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"Procedural problems need reasoning-gym, but {error.name} is not there: pip install reasoning-gym==0.1.25."
        ) from error
    return DATASETS


def _made(task: str, options: Mapping[str, Any], seed: int) -> Problem:
    entry = data_set(task, options, seed)[0]
    return Problem(
        id=f"{task}-{seed}",
        question=entry["question"].strip(),
        answer=str(entry["answer"] or ""),  # where many answers are right there may be none to show
        benchmark=task,
        columns={"metadata": entry["metadata"]},
        scored_as={"task": task, "options": dict(options), "seed": seed},
    )


def _origin(tasks: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
    chosen = {task: dict(options[task]) for task in tasks if task in options}
    return {"generated": list(tasks), "options": chosen, "reasoning_gym": version("reasoning_gym")}
