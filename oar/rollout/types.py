"""What the engine is asked for and what it gives back: token ids in, token ids and the sampler's logprobs out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw completions: `n` per prompt; temperature 0 is greedy.

    A completion also ends with a string of `stop` or an id of `stop_token_ids`, which it then holds, beside the EOS that
    the model itself knows.
    """

    n: int
    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion, exactly as the engine made it.

    `completion_ids` includes the EOS token where the completion ended by itself (`finish_reason` "stop", else "length");
    `sampler_logprobs` has one entry per completion id, after temperature; `weight_version` is the policy that drew it.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: str
