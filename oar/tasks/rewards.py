"""Rewards in the shape of TRL's: `reward(prompts, completions, **columns)` gives a number for each completion.

Everything comes as keyword arguments, prompts and completions as texts. A column is a list with a value per completion. There
are those of the data set (None where a row lacks one), among them always id, question, answer (the gold one), solution, level,
subject and benchmark; and what is known of a completion:

    final_answer: what stands in it as its answer, None where there is none
    correct: whether the verifier calls that right
    score: 1.0 or 0.0 for right or wrong; of a procedural problem what its own scorer says, between them
    completion_tokens: how many tokens it has
    truncated: whether it was cut at the greatest length

`seed` alone is a single number, another one in each step: random draws come from it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from oar.tasks.sheets import reward as sheet_reward
from oar.tasks.words.parts import share_right


def answer(prompts: Sequence[str], completions: Sequence[str], score: Sequence[float], **columns: Any) -> list[float]:
    """How right the final answer is."""
    return list(score)


def sheet(
    prompts: Sequence[str],
    completions: Sequence[str],
    final_answer: Sequence[str | None],
    solution: Sequence[str],
    sheets: Sequence[Mapping[str, Any]],
    **columns: Any,
) -> list[float]:
    """What sheets earn by the entries that count: the asked one, their share, or all of them, as the problem says."""
    return list(map(sheet_reward, completions, final_answer, solution, sheets))


def parts(
    prompts: Sequence[str],
    completions: Sequence[str],
    final_answer: Sequence[str | None],
    answer: Sequence[str],
    **columns: Any,
) -> list[float]:
    """The share of a problem's parts whose answers, in their order, are right."""
    return list(map(share_right, final_answer, answer))


def format(
    prompts: Sequence[str], completions: Sequence[str], final_answer: Sequence[str | None], **columns: Any
) -> list[float]:
    """1 where there is a final answer in the form that was asked for, right or wrong."""
    return [float(found is not None) for found in final_answer]


def length(
    prompts: Sequence[str],
    completions: Sequence[str],
    completion_tokens: Sequence[int],
    *,
    longest: int,
    **columns: Any,
) -> list[float]:
    """1 for nothing at all, falling in a straight line to 0 at `longest` tokens."""
    return [max(0.0, 1.0 - tokens / longest) for tokens in completion_tokens]


def random(prompts: Sequence[str], completions: Sequence[str], *, seed: int, **columns: Any) -> list[float]:
    """The toss of a coin: a control."""
    coins = torch.rand(len(completions), generator=torch.Generator().manual_seed(seed))
    return (coins < 0.5).float().tolist()
