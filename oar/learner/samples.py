"""Completions for people to look at, with the weight of every token."""

from oar.learner.step import StepReport
from oar.tasks.task import Task


def sample_rows(task: Task, report: StepReport, count: int) -> list[dict[str, object]]:
    """The first `count` completions of a step that have an advantage (any, where none has): one row each."""
    graded, credit = report.graded, report.data
    has_advantage = (credit.token_advantages * graded.batch.completion_mask).abs().sum(dim=1) > 0
    order = (~has_advantage).int().argsort(stable=True).tolist()
    rows: list[dict[str, object]] = []
    for index in order[:count]:
        length = int(graded.batch.completion_lengths[index])
        rows.append(
            {
                "problem": graded.problems[index].id,
                "prompt": graded.problems[index].question,
                "completion": graded.texts[index],
                "gold": graded.problems[index].answer,
                "reward": float(graded.rewards[index]),
                "tokens": [task.decode([token]) for token in graded.batch.completion_ids[index, :length].tolist()],
                "token_weights": [round(w, 4) for w in credit.token_weights[index, :length].tolist()],
                "token_importance": [float(f"{i:.3e}") for i in credit.token_importance[index, :length].tolist()],
            }
        )
    return rows
