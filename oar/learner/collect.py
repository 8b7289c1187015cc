"""From a step's problems to a graded batch of completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.method.batch import CompletionBatch, collate
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import ANSWER, Completed, Earned, RewardTerms
from oar.tasks.task import Task
from oar.tasks.verifier.grade import Verdict, outcome_shares


@dataclass(frozen=True, slots=True)
class GradedGroup:
    """The completions of one problem, each with its text, its verdict and what it earns.

    values: of each completion what its states are worth, token by token, NaN where nobody knows; None where none was asked for.
    """

    problem: Problem
    rollouts: Sequence[Rollout]
    texts: Sequence[str]
    verdicts: Sequence[Verdict]
    earned: Sequence[Earned]
    values: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class GradedBatch:
    """B completions, group by group: tensors, texts for people, rewards (B,), and whether each was right and cut off (B,).

    terms: what each earns by the name of a reward, of which `rewards` are the weighted sums; streams (B, S): the same as numbers.
    weight_version: of the weights that drew them; of several the oldest.
    marks: the task's ground truth (B, T) by name, False or 0 outside the completion; those that all problems know.
    outcomes: the share of completions that was judged in each way (oar.tasks.verifier.grade.OUTCOMES).
    values: what the state before each token is worth (B, T), NaN where nobody knows, None where no continuations were drawn.
    spellings: token ids of the right answer in other spellings (B, V, K), -1 behind their end, None where none are asked for.
    """

    batch: CompletionBatch
    problems: list[Problem]
    texts: list[str]
    terms: list[Mapping[str, float]]
    rewards: Tensor
    streams: Tensor
    correct: Tensor
    marks: Mapping[str, Tensor]
    truncated: Tensor
    weight_version: int
    outcomes: Mapping[str, float]
    values: Tensor | None = None
    spellings: Tensor | None = None


def grade_groups(
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Rollout]],
    task: Task,
    reward: RewardTerms = ANSWER,
    *,
    seed: int = 0,
) -> list[GradedGroup]:
    """Verify each completion's answer and reward it, all at once. `groups` holds one list per problem."""
    texts = [[task.decode(rollout.completion_ids) for rollout in group] for group in groups]
    owners = [problem for problem, group in zip(problems, groups, strict=True) for _ in group]
    verdicts = iter(task.grade_all(owners, [text for said in texts for text in said]))
    completed = [
        [
            Completed(
                problem, prompt, text, next(verdicts), len(rollout.completion_ids), rollout.finish_reason == "length"
            )
            for rollout, text in zip(group, said, strict=True)
        ]
        for problem, prompt, group, said in zip(problems, map(task.render, problems), groups, texts, strict=True)
    ]
    earned = iter(reward([one for done in completed for one in done], seed))
    return [
        GradedGroup(problem, group, said, [one.verdict for one in done], [next(earned) for _ in done])
        for problem, group, said, done in zip(problems, groups, texts, completed, strict=True)
    ]


def collate_groups(
    groups: Sequence[GradedGroup],
    task: Task,
    device: torch.device,
    context: str | None = None,
    *,
    needs_answer: bool = True,
    spellings: bool = False,
) -> GradedBatch:
    """Find each completion's segments and its ground truth, and collate all.

    `context` (`oar.names.CONTEXTS`): what privileged prompts show, None where none are asked for. `needs_answer`: whether the
    probe reads the answer; where it does not, a completion without an answer span is all reasoning (docs/METHOD.md §3).
    `spellings`: whether the right answer is written in other ways too.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    owners = [group.problem for group in groups for _ in group.rollouts]
    texts = [text for group in groups for text in group.texts]
    verdicts = [verdict for group in groups for verdict in group.verdicts]
    earned = [one for group in groups for one in group.earned]
    batch = collate(
        [rollout.prompt_ids for rollout in rollouts],
        [rollout.completion_ids for rollout in rollouts],
        [rollout.sampler_logprobs for rollout in rollouts],
        [
            task.segments(rollout.completion_ids, text, needs_answer=needs_answer)
            for rollout, text in zip(rollouts, texts, strict=True)
        ],
        [gold for group in groups for gold in [task.encode_gold(group.problem)] * len(group.rollouts)],
        None
        if context is None
        else [ids for one in groups for ids in task.encode_contexts(context, one.problem, one.texts, one.verdicts)],
        references=[ids for group in groups for ids in [task.encode_solution(group.problem)] * len(group.rollouts)],
        pad_id=task.pad_id,
        device=device,
    )
    marks = [task.marks(problem, rollout.completion_ids) for problem, rollout in zip(owners, rollouts, strict=True)]
    return GradedBatch(
        batch=batch,
        problems=owners,
        texts=texts,
        terms=[one.terms for one in earned],
        rewards=torch.tensor([one.total for one in earned], dtype=torch.float32, device=device),
        streams=torch.tensor([list(one.terms.values()) for one in earned], dtype=torch.float32, device=device),
        correct=torch.tensor([verdict.correct for verdict in verdicts], device=device),
        marks=_collated_marks(marks, batch.completion_mask),
        truncated=torch.tensor([rollout.finish_reason == "length" for rollout in rollouts], device=device),
        weight_version=min(rollout.weight_version for rollout in rollouts),
        outcomes=outcome_shares(verdicts),
        values=_collated_values([one for group in groups for one in group.values or ()], batch.completion_mask),
        spellings=_collated_spellings(groups, task, device) if spellings else None,
    )


def grade_rollouts(
    problems: Sequence[Problem],
    groups: Sequence[Sequence[Rollout]],
    task: Task,
    device: torch.device,
    context: str | None = None,
    *,
    needs_answer: bool = True,
) -> GradedBatch:
    """Both at once: from the completions of each problem to a batch."""
    return collate_groups(grade_groups(problems, groups, task), task, device, context, needs_answer=needs_answer)


def _collated_marks(marks: Sequence[Mapping[str, Sequence[int]]], completion_mask: Tensor) -> dict[str, Tensor]:
    """Marks as tensors like `completion_mask`. A name that only some completions have is left out: no mark is not False."""
    collated = {}
    for name in sorted(set.intersection(*(set(known) for known in marks))):
        values = torch.tensor([value for known in marks for value in known[name]], device=completion_mask.device)
        collated[name] = torch.zeros_like(completion_mask, dtype=values.dtype).masked_scatter(completion_mask, values)
    return collated


def _collated_values(values: Sequence[Sequence[float]], completion_mask: Tensor) -> Tensor | None:
    """Values of every completion's tokens as a tensor like `completion_mask`; None where there are none."""
    if not values:
        return None
    collated = torch.full(completion_mask.shape, torch.nan, device=completion_mask.device)
    collated[completion_mask] = torch.tensor([value for own in values for value in own], device=completion_mask.device)
    return collated


def _collated_spellings(groups: Sequence[GradedGroup], task: Task, device: torch.device) -> Tensor:
    """(B, V, K): those of each completion's problem, -1 where there is none."""
    known = [task.encode_spellings(group.problem) for group in groups]
    most = max(len(spelled) for spelled in known)
    longest = max((len(ids) for spelled in known for ids in spelled), default=0)
    rows = [[[*ids, *[-1] * (longest - len(ids))] for ids in [*own, *[[]] * (most - len(own))]] for own in known]
    collated = torch.tensor(rows, dtype=torch.long, device=device).view(len(groups), most, longest)
    return collated.repeat_interleave(torch.tensor([len(group.rollouts) for group in groups], device=device), dim=0)
