"""What a plan has to assume because no configuration of a run says it. The values stand in conf/assume, each with its reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oar.config.checks import require


@dataclass
class Assumptions:
    """The keys are explained in conf/assume/paper.yaml."""

    device: str
    devices: int
    memory_gib: float
    peak_tflops: dict[str, float]
    utilisation: float
    credit_utilisation: float
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
    continued_states: float
    training_problems: int | None

    def __post_init__(self) -> None:
        shortest = self.marker_tokens + self.answer_tokens + 2
        limits: list[tuple[str, str, Callable[[Any], bool]]] = [
            ("devices engines prompt_tokens marker_tokens answer_tokens", "1 or more", lambda it: it >= 1),
            ("memory_gib generated_tokens_per_s sync_gb_per_s", "above 0", lambda it: it > 0),
            ("utilisation credit_utilisation contributing_share", "above 0 and at most 1", lambda it: 0 < it <= 1),
            ("overhead_gib", "0 or more", lambda it: it >= 0),
            ("price_per_device_hour training_problems", "null or above 0", lambda it: it is None or it > 0),
            ("completion_tokens", f"{shortest} or more (reasoning, marker, answer, EOS)", lambda it: it >= shortest),
            ("continued_states", "0 or more", lambda it: it >= 0),
            ("longest_prompt", f"assume.prompt_tokens ({self.prompt_tokens}) or more", self.prompt_tokens.__le__),
            ("engines", f"at most assume.devices ({self.devices})", self.devices.__ge__),
        ]
        for keys, expected, holds in limits:
            for key in keys.split():
                require(holds(getattr(self, key)), f"assume.{key}", expected, getattr(self, key))
        for dtype, peak in self.peak_tflops.items():
            require(peak > 0, f"assume.peak_tflops.{dtype}", "above 0", peak)
