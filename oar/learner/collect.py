"""From a step's problems to a graded batch of completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.method.batch import CompletionBatch, collate
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.verifier.grade import Verdict, outcome_shares


@dataclass(frozen=True, slots=True)
class GradedGroup:
    """The completions of one problem, each with its text and its verdict."""

    problem: Problem
    rollouts: Sequence[Rollout]
    texts: Sequence[str]
    verdicts: Sequence[Verdict]

    @property
    def is_mixed(self) -> bool:
        """Whether some completions are right and some wrong: no other group tells one from the other."""
        return len({verdict.correct for verdict in self.verdicts}) > 1


@dataclass(frozen=True, slots=True)
class GradedBatch:
    """B completions, group by group: tensors, texts for people, rewards (B,), and whether each was cut off (B,).

    weight_version: of the weights that drew them; of several the oldest.
    marks: the task's ground truth (B, T) by name, False outside the completion; those that all problems know.
    outcomes: the share of completions that was judged in each way (oar.tasks.verifier.grade.OUTCOMES).
    """

    batch: CompletionBatch
    problems: list[Problem]
    texts: list[str]
    rewards: Tensor
    marks: Mapping[str, Tensor]
    truncated: Tensor
    weight_version: int
    outcomes: Mapping[str, float]


def grade_groups(problems: Sequence[Problem], groups: Sequence[Sequence[Rollout]], task: Task) -> list[GradedGroup]:
    """Verify each completion's answer, all at once. `groups` holds one list per problem."""
    texts = [[task.decode(rollout.completion_ids) for rollout in group] for group in groups]
    owners = [problem for problem, group in zip(problems, groups, strict=True) for _ in group]
    verdicts = iter(task.grade_all(owners, [text for group in texts for text in group]))
    return [
        GradedGroup(problem, group, said, [next(verdicts) for _ in group])
        for problem, group, said in zip(problems, groups, texts, strict=True)
    ]


def collate_groups(groups: Sequence[GradedGroup], task: Task, device: torch.device) -> GradedBatch:
    """Find each completion's segments and its ground truth, and collate all."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    owners = [group.problem for group in groups for _ in group.rollouts]
    texts = [text for group in groups for text in group.texts]
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    batch = collate(
        [rollout.prompt_ids for rollout in rollouts],
        [rollout.completion_ids for rollout in rollouts],
        [rollout.sampler_logprobs for rollout in rollouts],
        [task.segments(rollout.completion_ids, text) for rollout, text in zip(rollouts, texts, strict=True)],
        [gold for group in groups for gold in [task.encode_gold(group.problem)] * len(group.rollouts)],
        pad_id=task.pad_id,
        device=device,
    )
    marks = [task.marks(problem, rollout.completion_ids) for problem, rollout in zip(owners, rollouts, strict=True)]
    return GradedBatch(
        batch=batch,
        problems=owners,
        texts=texts,
        rewards=torch.tensor([verdict.correct for verdict in verdicts], dtype=torch.float32, device=device),
        marks=_collated_marks(marks, batch.completion_mask),
        truncated=torch.tensor([rollout.finish_reason == "length" for rollout in rollouts], device=device),
        weight_version=min(rollout.weight_version for rollout in rollouts),
        outcomes=outcome_shares(verdicts),
    )


def grade_rollouts(
    problems: Sequence[Problem], groups: Sequence[Sequence[Rollout]], task: Task, device: torch.device
) -> GradedBatch:
    """Both at once: from the completions of each problem to a batch."""
    return collate_groups(grade_groups(problems, groups, task), task, device)


def _collated_marks(marks: Sequence[Mapping[str, Sequence[bool]]], completion_mask: Tensor) -> dict[str, Tensor]:
    """Marks as tensors like `completion_mask`. A name that only some completions have is left out: no mark is not False."""
    collated = {}
    for name in sorted(set.intersection(*(set(known) for known in marks))):
        collated[name] = torch.zeros_like(completion_mask)
        collated[name][completion_mask] = torch.tensor(
            [marked for known in marks for marked in known[name]], device=completion_mask.device
        )
    return collated
