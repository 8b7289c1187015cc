"""What a plan has to assume because no configuration of a run says it. The values stand in conf/assume, each with its reason."""

from dataclasses import dataclass

from oar.config.checks import one_of, require

NUMBER_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass
class Assumptions:
    """The keys are explained in conf/assume/paper.yaml."""

    device: str
    devices: int
    memory_gib: float
    peak_tflops: float
    utilisation: float
    generated_tokens_per_s: float
    sync_gb_per_s: float
    overhead_gib: float
    price_per_device_hour: float | None
    learner_ranks: int
    engines: int
    dtype: str
    checkpointing: bool
    logits_chunk: int | None
    prompt_tokens: int
    longest_prompt: int
    completion_tokens: int
    marker_tokens: int
    answer_tokens: int
    contributing_share: float
    training_problems: int | None

    def __post_init__(self) -> None:
        for key in ("devices", "learner_ranks", "engines", "prompt_tokens", "marker_tokens", "answer_tokens"):
            require(getattr(self, key) >= 1, f"assume.{key}", "1 or more", getattr(self, key))
        for key in ("memory_gib", "peak_tflops", "generated_tokens_per_s", "sync_gb_per_s"):
            require(getattr(self, key) > 0, f"assume.{key}", "above 0", getattr(self, key))
        for key in ("utilisation", "contributing_share"):
            require(0 < getattr(self, key) <= 1, f"assume.{key}", "above 0 and at most 1", getattr(self, key))
        require(self.overhead_gib >= 0, "assume.overhead_gib", "0 or more", self.overhead_gib)
        for key in ("price_per_device_hour", "logits_chunk", "training_problems"):
            value = getattr(self, key)
            require(value is None or value > 0, f"assume.{key}", "null or above 0", value)
        one_of("assume.dtype", self.dtype, tuple(NUMBER_BYTES))
        fewest = self.marker_tokens + self.answer_tokens + 2
        require(
            self.completion_tokens >= fewest,
            "assume.completion_tokens",
            f"{fewest} or more (reasoning, marker, answer, EOS)",
            self.completion_tokens,
        )
        require(
            self.longest_prompt >= self.prompt_tokens,
            "assume.longest_prompt",
            f"assume.prompt_tokens ({self.prompt_tokens}) or more",
            self.longest_prompt,
        )
        for key in ("learner_ranks", "engines"):
            require(
                getattr(self, key) <= self.devices,
                f"assume.{key}",
                f"at most assume.devices ({self.devices})",
                getattr(self, key),
            )

    @property
    def number_bytes(self) -> int:
        """Bytes of a number that learner and engine compute with."""
        return NUMBER_BYTES[self.dtype]

    @property
    def shared(self) -> bool:
        """Whether some device holds a rank of the learner and an engine."""
        return self.learner_ranks + self.engines > self.devices
