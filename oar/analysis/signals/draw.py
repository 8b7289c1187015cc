"""Completions drawn by the model itself, without an engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from transformers import GenerationConfig, PreTrainedModel

from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task


def draw(
    model: PreTrainedModel,
    task: Task,
    problems: Sequence[Problem],
    *,
    samples: int = 1,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> list[list[Rollout]]:
    """`samples` completions of each problem, drawn without an engine: its start takes longer than all that is drawn here."""
    prompts = [task.encode_prompt(problem) for problem in problems for _ in range(samples)]
    found = continued(model, task, prompts, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed)
    return [found[at : at + samples] for at in range(0, len(found), samples)]


@torch.no_grad()
def continued(
    model: PreTrainedModel,
    task: Task,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
) -> list[Rollout]:
    """A completion behind each of `prompts`, which are token ids."""
    width = max(map(len, prompts))
    ids = torch.tensor([[task.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.random.fork_rng(), _no_defaults(model):
        torch.manual_seed(seed)
        drawn = cast(Any, model).generate(  # its declared type does not admit its own models
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            do_sample=True,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=task.stop_ids,
            pad_token_id=task.pad_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
    completions = drawn.sequences[:, width:]
    logprobs = torch.stack(drawn.scores, dim=1).log_softmax(dim=-1).gather(2, completions[:, :, None])[:, :, 0]
    found = []
    for prompt, tokens, chosen in zip(prompts, completions.tolist(), logprobs.tolist(), strict=True):
        stops = [at for at, token in enumerate(tokens) if token in task.stop_ids]
        end, reason = (stops[0] + 1, "stop") if stops else (len(tokens), "length")
        found.append(Rollout(tuple(prompt), tuple(tokens[:end]), tuple(chosen[:end]), 0, reason))
    return found


@contextmanager
def _no_defaults(model: PreTrainedModel) -> Iterator[None]:
    """Without what the model's generation_config.json adds (repetition_penalty, ...): drawn is the policy's own distribution."""
    own: Any = model
    before, own.generation_config = own.generation_config, GenerationConfig()
    try:
        yield
    finally:
        own.generation_config = before
