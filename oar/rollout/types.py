"""What the engine is asked for and what it gives back: token ids in, token ids and the sampler's logprobs out."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion, exactly as the engine made it.

    `completion_ids` includes the EOS token where the completion ended by itself (`finish_reason` "stop", else "length");
    `sampler_logprobs` has one entry per completion id, after temperature, or none at all where they were not asked for;
    `weight_version` is the policy that drew it.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampler_logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: str

    def behind(self, begun: "Rollout") -> "Rollout":
        """The whole completion, where this one was drawn behind prompt and tokens of `begun`."""
        return replace(
            self,
            prompt_ids=begun.prompt_ids,
            completion_ids=(*begun.completion_ids, *self.completion_ids),
            sampler_logprobs=(*begun.sampler_logprobs, *self.sampler_logprobs),
        )
