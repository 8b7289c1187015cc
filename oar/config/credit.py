"""The groups reward, method, gating, probe and counterfactual: what a completion earns, and how credit is assigned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oar.config.checks import one_of, require
from oar.names import CONTROLS, COUNTERFACTUALS, CUTS, DRAWN, PROBES, REFERENCES, TEACHERS, THRESHOLDS


def check_reward(reward: Mapping[str, Any]) -> None:
    """Raises ConfigError where the group reward names no term, or a term has a weight that is no finite number."""
    require(len(reward) > 0, "reward", "at least one term, e.g. answer", dict(reward))
    for name, term in reward.items():
        require(isinstance(term, Mapping), f"reward.{name}", "keys, _target_ among them", term)
        weight = term.get("weight", 1.0)
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        require(is_number and math.isfinite(weight), f"reward.{name}.weight", "a finite number", weight)


@dataclass
class ContinuationsConfig:
    """What is drawn from within completions, to say what their states are worth (oar/learner/continuations.py)."""

    samples: int
    cut: str
    every: int
    below: float | None
    most: int | None

    def __post_init__(self) -> None:
        key = "method.continuations"
        for name in ("samples", "every"):
            require(getattr(self, name) >= 1, f"{key}.{name}", "1 or more", getattr(self, name))
        require(self.most is None or self.most >= 1, f"{key}.most", "null or 1 or more", self.most)
        one_of(f"{key}.cut", self.cut, CUTS)
        needed = self.cut == "low_probability"
        stated = self.below is not None and 0 < self.below <= 1
        require(stated == needed, f"{key}.below", "a probability where cut=low_probability, else null", self.below)


@dataclass
class TeacherConfig:
    """Who scores completions with a privileged look: the policy itself, the starting model, or a copy that follows the policy."""

    kind: str
    every: int
    rate: float

    def __post_init__(self) -> None:
        one_of("method.teacher.kind", self.kind, TEACHERS)
        require(self.every >= 1, "method.teacher.every", "1 or more", self.every)
        require(0 < self.rate <= 1, "method.teacher.rate", "above 0 and at most 1", self.rate)

    @property
    def follows(self) -> bool:
        """Whether it is a copy that changes as the policy does."""
        return self.kind in ("synced", "averaged")


@dataclass
class GenericConfig:
    """Members of each group, the last of its completions, that are drawn under a generic prompt (`Task.encode_generic`)."""

    members: int
    identity: float

    def __post_init__(self) -> None:
        require(self.members >= 1, "method.generic.members", "1 or more", self.members)
        require(0 <= self.identity <= 1, "method.generic.identity", "between 0 and 1", self.identity)


@dataclass
class MethodConfig:
    """Which signal says what a token is worth. `estimator` names its class: a new method is one file and one YAML.

    `surrogate` and `auxiliary` name classes too, or are None: what changes the clipped objective, and what stands beside it.
    `continuations`: what the engine draws for the signal beside the rollouts, or None. `generic`: who of a group answers another
    prompt, or None.
    """

    name: str
    estimator: Any
    surrogate: Any
    auxiliary: Any
    continuations: ContinuationsConfig | None
    times_surprisal: bool
    preserve_mass: bool
    control: str
    decoupled_rewards: bool
    teacher: TeacherConfig
    generic: GenericConfig | None = None

    def __post_init__(self) -> None:
        one_of("method.control", self.control, CONTROLS)


@dataclass
class GatingConfig:
    """From importance to weights (docs/METHOD.md §5)."""

    name: str
    suppress: bool
    boost: bool
    tau: float
    beta: float
    floor: float
    threshold: str

    def __post_init__(self) -> None:
        require(0 <= self.tau <= 1, "gating.tau", "between 0 and 1", self.tau)
        require(self.beta >= 0, "gating.beta", "0 or more", self.beta)
        require(0 < self.floor <= 1, "gating.floor", "above 0 and at most 1", self.floor)
        one_of("gating.threshold", self.threshold, THRESHOLDS)

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `oar.method.gating.make_gate`."""
        return {key: value for key, value in vars(self).items() if key != "name"}


@dataclass
class ProbeConfig:
    """What stands for the model's answer (docs/METHOD.md §3)."""

    name: str
    warmup_steps: int
    conclude: str | None
    path: str | None = None
    reference: str | None = None

    def __post_init__(self) -> None:
        one_of("probe.name", self.name, PROBES)
        require(self.warmup_steps >= 0, "probe.warmup_steps", "0 or more", self.warmup_steps)
        scored, referred = self.name == "reward_model", self.name == "reference"
        require(
            bool(self.path) == scored,
            "probe.path",
            "a reward model's folder with probe=reward_model, else null",
            self.path,
        )
        expected = f"{' or '.join(REFERENCES)} with probe=reference, else null"
        require(self.reference in (REFERENCES if referred else (None,)), "probe.reference", expected, self.reference)

    @property
    def needs_answer(self) -> bool:
        """Whether the outcome is the completion's own answer, so that one without an answer span has none."""
        return self.name not in ("reference", "reward_model")


@dataclass
class CounterfactualConfig:
    """What OAR-P puts in a token's place (docs/METHOD.md §7.5).

    `draws`: more than one only where it is random; `text`: one token, of name=text.
    """

    name: str
    draws: int = 1
    text: str | None = None

    def __post_init__(self) -> None:
        one_of("counterfactual.name", self.name, COUNTERFACTUALS)
        one_draw = self.name not in DRAWN and self.draws != 1
        expected = f"1 where counterfactual is {self.name}, which draws nothing" if one_draw else "1 or more"
        require(self.draws >= 1 and not one_draw, "counterfactual.draws", expected, self.draws)
        expected = f"{'a token in words' if self.name == 'text' else 'null'} where counterfactual is {self.name}"
        require(bool(self.text) == (self.name == "text"), "counterfactual.text", expected, self.text)
