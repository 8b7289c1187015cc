"""Oracles of exact token values: how far each token moves the expected reward, where the task knows which tokens decide it.

A task marks the tokens that its reward counts by the id that would be right in their place (`right`, or `all_right` where one
wrong token forfeits the reward). With p the policy's own probability of the right one, the value of such a token is known
without continuations: hit - p for one of several that count alike, and of a chain the product over what follows as well. Tokens
that are not marked are taken to change nothing, which is true as far as the policy keeps to the form.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.method.forward.logprobs import score_completions
from oar.method.importance.base import CreditInputs

RIGHT, ALL_RIGHT = "right", "all_right"


@torch.no_grad()
def exact_deltas(inputs: CreditInputs) -> Tensor:
    """V(after the token) - V(before it), (B, T), of the policy at temperature 1; 0 where nothing is decided.

    Unit: what one entry is worth; of `all_right` the reward itself. Raises DataError where the task does not say what is right.
    """
    chain = ALL_RIGHT in inputs.marks
    if not chain and RIGHT not in inputs.marks:
        raise DataError(
            f"Exact token values need a task that marks its right tokens, but it marks "
            f"{', '.join(sorted(inputs.marks)) or 'nothing'}: train on sheets (data=sheets), or choose another method."
        )
    batch, right = inputs.batch, inputs.marks[ALL_RIGHT if chain else RIGHT]
    decides = (right != 0) & batch.reasoning_mask
    # The prefixes are the completion's own, the token scored behind each is the right one.
    asked = replace(batch, completion_ids=torch.where(decides, right, batch.completion_ids))
    p = score_completions(inputs.model, asked, temperature=1.0).logprobs.exp().masked_fill(~decides, 1.0)
    hit = (batch.completion_ids == right).float().masked_fill(~decides, 1.0)
    delta = (hit - p) * decides
    if not chain:
        return delta
    ones = torch.ones_like(p[:, :1])
    all_before = torch.cat([ones, hit.cumprod(dim=1)[:, :-1]], dim=1)
    all_after = torch.cat([p.flip(1).cumprod(dim=1).flip(1)[:, 1:], ones], dim=1)
    return delta * all_before * all_after


@dataclass(frozen=True, slots=True)
class ExactWeights:
    """Weights in proportion to |delta|, or with `match_sign` to the part of delta that has the sign of the advantage.

    Their mean over the reasoning is 1; a completion in which nothing is decided keeps weight 1, and so does all that is not
    reasoning.
    """

    match_sign: bool
    gives: ClassVar[Literal["weights"]] = "weights"

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        delta, mask = exact_deltas(inputs), inputs.batch.reasoning_mask
        part = (delta * inputs.known_advantages().sign()[:, None]).clamp(min=0) if self.match_sign else delta.abs()
        total = part.sum(dim=1, keepdim=True)
        mean_one = part * mask.sum(dim=1, keepdim=True) / total.masked_fill(total == 0, 1.0)
        return mean_one.masked_fill(~mask | (total == 0), 1.0)


@dataclass(frozen=True, slots=True)
class ExactAdvantages:
    """A_t = scale x delta_t, and 0 for tokens that decide nothing: groups without a difference in reward learn as well.

    With `unit_size` delta is divided by the root mean square of what is not 0 of it in the batch, as PPO whitens advantages:
    of a reward that is hardly ever earned the values are so small that a KL term outweighs them. A completion without an answer
    keeps A.
    """

    scale: float = 1.0
    unit_size: bool = False
    gives: ClassVar[Literal["advantages"]] = "advantages"

    @property
    def needs_batch(self) -> bool:
        """Whether completions are compared."""
        return self.unit_size

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        answered, deltas = inputs.batch.has_answer[:, None], exact_deltas(inputs)
        if self.unit_size:
            counted = answered & (deltas != 0)
            deltas = deltas * (counted.sum().clamp(min=1) / (deltas * counted).square().sum().clamp(min=1e-30)).sqrt()
        return (self.scale * deltas).where(answered, inputs.known_advantages()[:, None])
