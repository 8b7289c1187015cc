"""Completions that a run keeps whole, with the credit of every token: what people look at, and what is inspected later."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from torch import Tensor

from oar.common.errors import DataError
from oar.learner.step import StepReport
from oar.method.segments import Segments
from oar.runs.tracking import SAMPLES
from oar.tasks.task import Task

RESYNC = 8  # characters of a completion's text that a token may lie behind where its place was lost


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion of a training step and all that the step knew of it: a line of samples.jsonl without its `step`.

    Lists have an entry per completion token. prompt: the question, of a generic completion its stripped prompt; row: its place
    in the step's batch, from which its random draws derive; segments: `oar.method.segments.Segments`, None where there is no
    answer and the probe needs one; rewards: what it earns by name, of which `reward` is the weighted sum; old_logprobs and
    entropy (nats): of the policy that drew it; token_importance (as the gate saw it) and token_weights: of the run's method, 0
    and 1 where the advantage is 0 (`oar.method.credit.Credit`); marks: the task's ground truth by name, as positions;
    token_advantages: what the loss took, None in runs of an earlier version.
    """

    row: int
    problem: str
    benchmark: str
    prompt: str
    completion: str
    gold: str
    correct: bool
    reward: float
    rewards: dict[str, float]
    advantage: float
    prompt_ids: list[int]
    completion_ids: list[int]
    tokens: list[str]
    segments: list[int] | None
    old_logprobs: list[float]
    entropy: list[float]
    token_importance: list[float]
    token_weights: list[float]
    marks: dict[str, list[int]]
    token_advantages: list[float] | None = None

    @property
    def advantages(self) -> list[float]:
        """Of each token: weight times advantage where nothing else was kept, which is the same but for signed methods."""
        if self.token_advantages is not None:
            return self.token_advantages
        return [self.advantage * weight for weight in self.token_weights]

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens, from the first on, can be given credit."""
        return 0 if self.segments is None else Segments(*self.segments).reasoning_end


def sample_rows(task: Task, report: StepReport, count: int) -> list[dict[str, object]]:
    """The first `count` completions of a step that have an advantage, then others that were scored: one row each."""
    graded, credit = report.graded, report.credited
    has_advantage = (credit.token_advantages * graded.batch.completion_mask).abs().sum(dim=1) > 0
    order = (~has_advantage).int().argsort(stable=True)
    return [asdict(_sample(task, report, row)) for row in order[report.scored[order]][:count].tolist()]


def read_samples(folder: Path, step: int | None) -> tuple[int, list[Sample]]:
    """The completions that the run in `folder` kept of a step (of its last one that has any, where None), and that step.

    Raises DataError where there are none, or a line is not one of `sample_rows`.
    """
    found = read_steps(folder)
    chosen = max(found, default=None) if step is None else step
    if chosen not in found:
        raise DataError(
            f"{folder / SAMPLES} must hold completions of step {step}, but holds steps "
            f"{', '.join(map(str, found)) or 'none'}: choose one of them (tracking.samples_every says of which steps a run "
            "keeps some)."
        )
    return chosen, found[chosen]


def read_steps(folder: Path) -> dict[int, list[Sample]]:
    """By step the completions that the run in `folder` kept. Raises DataError as `read_samples`."""
    path = folder / SAMPLES
    if not path.exists():
        raise DataError(
            f"{folder} must be the folder of a run that keeps samples, but has no {SAMPLES}: change run, or train one with "
            "tracking.samples_every not above its learner.steps."
        )
    found: dict[int, list[Sample]] = {}
    *lines, _ = path.read_text(encoding="utf-8").split("\n")  # what follows the last newline is still being written
    for number, line in enumerate(lines, start=1):
        at, sample = _read(line, f"{path}, line {number}")
        found.setdefault(at, []).append(sample)
    return found


def _sample(task: Task, report: StepReport, row: int) -> Sample:
    batch, credit, problem = report.graded.batch, report.credited, report.graded.problems[row]
    length, prompt_length = int(batch.completion_lengths[row]), int(batch.prompt_lengths[row])
    prompt_ids = batch.input_ids[row, :prompt_length].tolist()
    completion_ids = batch.completion_ids[row, :length].tolist()
    borders = [int(mask[row].sum()) for mask in (batch.reasoning_mask, batch.marker_mask, batch.answer_mask)]

    def per_token(values: Tensor, digits: int) -> list[float]:
        return [float(f"{value:.{digits}g}") for value in values[row, :length].tolist()]

    return Sample(
        row=row,
        problem=problem.id,
        benchmark=problem.benchmark,
        prompt=problem.question if prompt_ids == task.encode_prompt(problem) else task.decode(prompt_ids),
        completion=report.graded.texts[row],
        gold=problem.answer,
        correct=bool(report.graded.correct[row]),
        reward=float(report.graded.rewards[row]),
        rewards=dict(report.graded.terms[row]),
        advantage=float(report.advantages[row]),
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        tokens=[task.decode([token]) for token in completion_ids],
        segments=[borders[0], sum(borders[:2]), sum(borders)] if any(borders) else None,
        old_logprobs=per_token(credit.old_logprobs, 6),
        entropy=per_token(credit.entropy, 5),
        token_importance=per_token(credit.token_importance, 5),
        token_weights=per_token(credit.token_weights, 5),
        marks=_positions({name: mark[row, :length] for name, mark in report.graded.marks.items()}),
        token_advantages=per_token(credit.token_advantages, 5),
    )


def _positions(marks: Mapping[str, Tensor]) -> dict[str, list[int]]:
    return {name: mark.nonzero()[:, 0].tolist() for name, mark in marks.items()}


def _read(line: str, where: str) -> tuple[int, Sample]:
    names: Sequence[str] = [field.name for field in fields(Sample) if field.default is MISSING]
    try:
        row = json.loads(line)
        known = {name: row[name] for name in names}
        return int(row["step"]), Sample(**known, token_advantages=row.get("token_advantages"))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where} must be a kept completion with {', '.join(names)}, but it cannot be read ({type(error).__name__}: "
            f"{error}): it may be of an earlier version, so run the training again."
        ) from error


def pieces(tokens: Sequence[str], text: str) -> list[str]:
    """Tokens as they stand in the text: a blank that belongs to no token (word-level tokenizers) goes before the next one."""
    found, end = [], 0
    for token in tokens:
        start = text.find(token, end, end + len(token) + RESYNC) if token else -1
        between = text[end:start] if start >= 0 else ""
        found.append(between + token if between.isspace() else token)
        end = start + len(token) if start >= 0 else end
    return found
