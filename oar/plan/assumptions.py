"""What a plan has to assume because no configuration of a run says it. The values stand in conf/assume, each with its reason."""

from dataclasses import dataclass

from oar.config.checks import require


@dataclass
class Assumptions:
    """The keys are explained in conf/assume/paper.yaml."""

    device: str
    devices: int
    memory_gib: float
    peak_tflops: dict[str, float]
    utilisation: float
    generated_tokens_per_s: float
    sync_gb_per_s: float
    overhead_gib: float
    price_per_device_hour: float | None
    engines: int
    prompt_tokens: int
    longest_prompt: int
    completion_tokens: int
    marker_tokens: int
    answer_tokens: int
    contributing_share: float
    training_problems: int | None

    def __post_init__(self) -> None:
        for key in ("devices", "engines", "prompt_tokens", "marker_tokens", "answer_tokens"):
            require(getattr(self, key) >= 1, f"assume.{key}", "1 or more", getattr(self, key))
        for key in ("memory_gib", "generated_tokens_per_s", "sync_gb_per_s"):
            require(getattr(self, key) > 0, f"assume.{key}", "above 0", getattr(self, key))
        for dtype, peak in self.peak_tflops.items():
            require(peak > 0, f"assume.peak_tflops.{dtype}", "above 0", peak)
        for key in ("utilisation", "contributing_share"):
            require(0 < getattr(self, key) <= 1, f"assume.{key}", "above 0 and at most 1", getattr(self, key))
        require(self.overhead_gib >= 0, "assume.overhead_gib", "0 or more", self.overhead_gib)
        for key in ("price_per_device_hour", "training_problems"):
            value = getattr(self, key)
            require(value is None or value > 0, f"assume.{key}", "null or above 0", value)
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
        require(
            self.engines <= self.devices, "assume.engines", f"at most assume.devices ({self.devices})", self.engines
        )
