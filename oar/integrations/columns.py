"""What a data set's columns tell a credit signal beside the prompt: right answers, and what a teacher is shown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oar.common.errors import DataError
from oar.method.importance import CreditSignal, reads_gold
from oar.method.importance.base import context_of
from oar.tasks.privileged import ASKS
from oar.tasks.problem import Problem
from oar.tasks.task import Task

Message = dict[str, Any]


def shown_column(signal: CreditSignal) -> str | None:
    """What a signal is told of each problem, `answer` or `solution`, if anything: for its probe, or for its teacher's look."""
    return "answer" if reads_gold(signal) else context_of(signal)


def told_problems(method: str, column: str, name: str, rows: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """The problems of rows whose column `name` has what `shown_column` says. Raises DataError where one has not."""
    if any(not row.get(name) for row in rows):
        raise DataError(
            f"{method} needs the {column} of every problem, but column {name!r} of the data set is not there or empty: name "
            f"another one by {column}_column, or choose another method."
        )
    problems = []
    for at, row in enumerate(rows):
        told: dict[str, Any] = {"answer": "", column: str(row[name])}
        problems.append(Problem(f"row {at}", str(row["prompt"]), benchmark="the data set", **told))
    return problems


def in_context(
    kind: str, problem: Problem, prompt: str | list[Message], task: Task, encoded: Callable[[list[Message]], list[int]]
) -> list[int]:
    """Token ids of the prompt with a privileged look, `kind` answer or solution.

    What is shown stands before a prompt that is text, as in a task without a template. To a conversation's last message it is
    added with the sentence of `oar.tasks.privileged.ASKS`; `encoded` then makes token ids of the conversation.
    """
    if isinstance(prompt, str):
        return task.encode_contexts(kind, problem, [""], [])[0]
    *before, last = prompt
    asked = ASKS[kind].replace("{shown}", problem.answer if kind == "answer" else problem.solution)
    return encoded([*before, {**last, "content": f"{last['content']}\n\n{asked}"}])
