"""MIG: how much likelier each step of the reasoning makes the right answer (arXiv 2602.01034; docs/METHODS.md)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.batch import collate
from oar.method.importance.base import CreditInputs
from oar.method.importance.clean import clean_passes
from oar.method.probes import GoldProbe
from oar.method.segments import Segments

EPS = 1e-4  # of the standard deviation, as in `oar.method.advantages`


@dataclass(frozen=True, slots=True)
class InformationAdvantages:
    """A_t = outcome x A + gain x (how a completion's marginal information gains compare within its group).

    As published (`by_step` false) it is one number for a completion, sum of its gains normalised within the group, for the
    tokens of its reasoning, and the mean of that loss is over these alone: hence the factor tokens / reasoning tokens. With
    `by_step` (ours) each step has its own gain, normalised over all steps of the group, for its own tokens, without the factor.
    Both losses are clipped together, by the sign of the sum; on the policy that changes nothing. `spellings`: the right answer
    counts in whichever spelling is likeliest, of those that the task knows.
    """

    outcome: float = 1.0
    gain: float = 1.0
    by_step: bool = False
    spellings: bool = False
    max_tokens_per_forward: int = 2048
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_gold: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.outcome < 0 or self.gain < 0:
            raise ConfigError(f"outcome and gain must be 0 or more, but are {self.outcome} and {self.gain}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        if self.spellings:
            inputs.known_spellings()
        gains, steps = information_gains(inputs, self.max_tokens_per_forward)
        groups, reasoning = inputs.known_groups(), inputs.batch.reasoning_mask
        if self.by_step:
            taken = torch.arange(gains.shape[1], device=gains.device) < step_counts(steps, reasoning)[:, None]
            compared = torch.zeros_like(gains)
            compared[taken] = normalised(gains[taken], groups[:, None].expand(gains.shape)[taken])
            shared = compared.gather(1, steps)
        else:
            compared = normalised(gains.sum(dim=1), groups)
            tokens = inputs.batch.completion_mask.sum(dim=1) / reasoning.sum(dim=1).clamp(min=1)
            shared = (compared * tokens)[:, None]
        return self.outcome * inputs.known_advantages()[:, None] + self.gain * shared * reasoning


def information_gains(inputs: CreditInputs, max_tokens: int) -> tuple[Tensor, Tensor]:
    """g_k (B, K), 0 behind a completion's last step, and to which step, from 0, each reasoning token belongs (B, T).

    g_k = max(0, l_k - h_{k-1}), l_k the mean log-likelihood of the right answer's tokens where it is announced behind the first k
    steps, h_k the highest of l_0 ... l_k (watermark): what was lost and won back earns nothing, and the sum is max l - l_0.
    Where other spellings of the answer are known, l_k is the highest of them all.
    A completion without an answer span has no reasoning that is known as such, and no gain. Raises DataError where the right
    answer, the announcement or what ends a step is not known.
    """
    batch = inputs.batch
    if not batch.gold_mask.any(dim=1).all() or not inputs.announcement or inputs.step_end_ids is None:
        raise DataError(
            "Information gains need the right answer of every problem in tokens, the tokens that announce it and those that end "
            "a step, but one is not known: choose another method."
        )
    ends = torch.isin(batch.completion_ids, inputs.step_end_ids) & batch.reasoning_mask
    steps = (ends.cumsum(dim=1) - ends.long()) * batch.reasoning_mask
    counts = step_counts(steps, batch.reasoning_mask).tolist()
    gains = torch.zeros(len(batch), max(1, *counts), device=ends.device)
    lengths = zip(batch.prompt_lengths.tolist(), batch.reasoning_mask.sum(dim=1).tolist(), strict=True)
    ids, answers, marked = batch.input_ids.tolist(), _right_answers(inputs), ends.tolist()
    for row, (prompt, reasoning) in enumerate(lengths):
        if reasoning:
            within = [place + 1 for place, ended in enumerate(marked[row][: reasoning - 1]) if ended]
            prefixes = [ids[row][prompt : prompt + border] for border in (0, *within, reasoning)]
            likelihoods = [_likelihoods(inputs, ids[row][:prompt], prefixes, gold, max_tokens) for gold in answers[row]]
            gains[row, : len(prefixes) - 1] = watermarked(torch.stack(likelihoods).amax(dim=0))
    return gains, steps


def watermarked(likelihoods: Tensor) -> Tensor:
    """g (K,) of l (K + 1,)."""
    return (likelihoods[1:] - likelihoods.cummax(dim=0).values[:-1]).clamp(min=0)


def step_counts(steps: Tensor, reasoning: Tensor) -> Tensor:
    """(B,): how many steps each completion has."""
    return (steps.amax(dim=1) + 1) * reasoning.any(dim=1)


def normalised(values: Tensor, groups: Tensor) -> Tensor:
    """(N,): values less their group's mean, over its standard deviation; 0 where a value is alone."""
    found = torch.zeros_like(values)
    for group in groups.unique():
        own = groups == group
        if own.sum() > 1:
            found[own] = (values[own] - values[own].mean()) / (values[own].std() + EPS)
    return found


def _right_answers(inputs: CreditInputs) -> list[list[list[int]]]:
    """Of each completion the token ids of the right answer, and of its other spellings where these are known."""
    padded = inputs.batch.gold_ids.masked_fill(~inputs.batch.gold_mask, -1)[:, None].tolist()
    if inputs.spellings is not None:
        padded = [[*own, *others] for own, others in zip(padded, inputs.spellings.tolist(), strict=True)]
    return [[ids for one in own if (ids := [token for token in one if token >= 0])] for own in padded]


@torch.no_grad()
def _likelihoods(
    inputs: CreditInputs, prompt: list[int], prefixes: list[list[int]], gold: list[int], max_tokens: int
) -> Tensor:
    """(len(prefixes),): mean log-likelihood of the right answer's tokens, announced behind prompt and prefix."""
    batch, announced = inputs.batch, list(inputs.announcement)
    cut = [[*prefix, *announced, *gold] for prefix in prefixes]
    starts = [len(prefix) + len(announced) for prefix in prefixes]
    borders = zip(map(len, prefixes), starts, strict=True)
    segments = [Segments(border, start, start + len(gold)) for border, start in borders]
    shown = collate(
        [prompt] * len(cut),
        cut,
        [[0.0] * len(one) for one in cut],
        segments,
        [gold] * len(cut),
        pad_id=batch.pad_id,
        device=batch.input_ids.device,
    )
    asked = replace(inputs, batch=shown, probe=GoldProbe(), scores=inputs.scores.numbers(), seeds=range(len(cut)))
    likelihoods = torch.zeros(len(cut), device=batch.input_ids.device)
    for clean in clean_passes(asked, max_tokens, graph=False):
        likelihoods[clean.completions] = clean.outcome
    return likelihoods / len(gold)
