"""What the engine is asked for and what it gives back: token ids in, token ids and the sampler's logprobs out."""

from dataclasses import dataclass


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
