"""Models with random weights and completions of random tokens, for costs and roundings, which do not ask what is said."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from oar.method.batch import CompletionBatch, collate
from oar.method.segments import Segments

PAD, MARKER, EOS, FIRST_WORD = 0, 1, 2, 3  # token ids
WARM_UP_LENGTH = 24  # completion tokens: every kernel is used once before anything is measured


def made_up_model(options: Mapping[str, Any], dtype: str, device: str, seed: int) -> PreTrainedModel:
    """A Qwen2 of the architecture `options` (keyword arguments of Qwen2Config) with random weights, dropout off."""
    options = dict(options)
    theta = options.pop("rope_theta")
    architecture = Qwen2Config(
        **options,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=EOS,
    )
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(architecture, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    assert isinstance(model, PreTrainedModel)
    return model.eval()


def made_up_words(count: int, vocabulary: int, rng: torch.Generator) -> list[int]:
    """Ids of `count` words."""
    return torch.randint(FIRST_WORD, vocabulary, (count,), generator=rng).tolist()


def made_up_batch(
    rows: int,
    vocabulary: int,
    rng: torch.Generator,
    *,
    prompt_tokens: int,
    reasoning_tokens: int,
    answer_tokens: int,
    device: str,
) -> CompletionBatch:
    """Completions of one length: reasoning, a marker of one token, an answer and EOS."""

    def words(count: int) -> list[int]:
        return made_up_words(count, vocabulary, rng)

    completions = [[*words(reasoning_tokens), MARKER, *words(answer_tokens), EOS] for _ in range(rows)]
    answer = reasoning_tokens + 1
    return collate(
        [words(prompt_tokens) for _ in range(rows)],
        completions,
        [[0.0] * len(ids) for ids in completions],
        [Segments(reasoning_tokens, answer, answer + answer_tokens)] * rows,
        pad_id=PAD,
        device=device,
    )
