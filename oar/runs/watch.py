"""What goes wrong while a run trains, told once: its entropy collapses, or the engine drifts away from the learner."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from oar.runs.collapse import COLLAPSE_SHARE, COLLAPSE_WINDOW, collapse_step

DRIFT = 0.5  # of the bound at which a run ends


@dataclass
class Watch:
    """Looks at a run's metrics step by step. max_logprob_diff: the bound (sync.max_logprob_diff) at which the run ends."""

    max_logprob_diff: float
    entropy: list[float] = field(default_factory=list)
    told: set[str] = field(default_factory=set)

    def look(self, step: int, metrics: Mapping[str, float]) -> dict[str, str]:
        """What has gone wrong at this step and was not told before: title to sentence."""
        if "train/entropy" in metrics:
            self.entropy.append(metrics["train/entropy"])
        found = {}
        if collapse_step(np.array(self.entropy)) is not None:
            found["Entropy has collapsed"] = (
                f"The mean of {COLLAPSE_WINDOW} steps is below {COLLAPSE_SHARE:g} of what it was at first (step {step})."
            )
        drift = metrics.get("train/sampler_logprob_diff_mean", 0.0)
        if drift > DRIFT * self.max_logprob_diff:
            found["Engine and learner drift apart"] = (
                f"Their logprobs differ by {drift:.3g} nats on average at step {step}; the run ends above "
                f"{self.max_logprob_diff:g} (sync.max_logprob_diff)."
            )
        new = {title: text for title, text in found.items() if title not in self.told}
        self.told |= set(new)
        return new
