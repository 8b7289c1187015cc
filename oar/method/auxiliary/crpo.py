"""CRPO's KL to the starting model, its strength adapted for each class of problems (arXiv 2605.25511; docs/METHODS.md)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.importance.base import CreditInputs

LARGEST = 10.0  # of a token's estimate (released code)


@dataclass(frozen=True, slots=True)
class KlState:
    """Moving averages of -log-probability by the starting model, over all and by class, and the coefficient of each class."""

    entropy: float | None = None
    entropies: Mapping[str, float] = field(default_factory=dict)
    coefficients: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KlByClass:
    """c x k3(policy, starting model) of each token, c that of the problem's class (the paper's role).

    After a step, for each class with n completions in it: H = its moving average of -log-probability by the starting model, of
    all H*; s = clip((H* / H)^power, 1 / widest, widest); the aim is target x s; error = clip(KL / aim - 1, +-largest_error);
    c <- c (1 - error n / horizon). As in the released code c falls where the KL is too large: what is used is exploited further,
    and it is no trust region. `holds` turns that round (1 + error), as such controllers are usually made. That a class of higher
    entropy has the smaller aim is the code's too.
    """

    start: float = 0.01
    target: float = 0.1
    power: float = 1.5
    widest: float = 2.0
    largest_error: float = 0.2
    horizon: int = 5000
    class_rate: float = 0.05
    overall_rate: float = 0.01
    holds: bool = False
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.start, self.target, self.horizon) <= 0 or self.widest < 1:
            raise ConfigError("start, target and horizon must be above 0 and widest 1 or more, but one is not.")
        if not all(0 < rate <= 1 for rate in (self.class_rate, self.overall_rate, self.largest_error)):
            raise ConfigError(
                "class_rate, overall_rate and largest_error must be above 0 and at most 1, but one is not."
            )

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T). Raises DataError where nobody has said the coefficients."""
        if inputs.reference_logprobs is None or inputs.kl_coefficients is None:
            raise DataError(
                "A KL by class needs the classes of the problems and the starting model, but was called without."
            )
        estimate = k3(inputs.scores.logprobs, inputs.reference_logprobs)
        return inputs.kl_coefficients[:, None] * estimate * inputs.batch.completion_mask

    def coefficient(self, state: KlState, name: str) -> float:
        """Of a class: where it has not been seen, `start`."""
        return state.coefficients.get(name, self.start)

    def adapted(self, state: KlState, name: str, completions: int, entropy: float, kl: float) -> KlState:
        """After a step that had so many completions of class `name`, of this mean entropy and KL per token."""
        overall = _moved(state.entropy, entropy, self.overall_rate)
        own = _moved(state.entropies.get(name), entropy, self.class_rate)
        scale = min(max((overall / max(own, 1e-8)) ** self.power, 1 / self.widest), self.widest)
        error = min(max(kl / (self.target * scale) - 1, -self.largest_error), self.largest_error)
        factor = 1 + (error if self.holds else -error) * completions / self.horizon
        coefficients = {**state.coefficients, name: self.coefficient(state, name) * factor}
        return replace(state, entropy=overall, entropies={**state.entropies, name: own}, coefficients=coefficients)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate of each token, bounded as in the released code."""
    ratio = reference - logprobs
    return (ratio.exp() - ratio - 1).clamp(-LARGEST, LARGEST)


def _moved(before: float | None, value: float, rate: float) -> float:
    return value if before is None else (1 - rate) * before + rate * value
