"""The composition of a method: probe and signal -> gate -> token advantages (docs/METHOD.md §3 to §5, docs/METHODS.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.errors import DataError
from oar.method.batch import CompletionBatch
from oar.method.control import controlled
from oar.method.forward.logprobs import Scores
from oar.method.gating import Gate
from oar.method.importance.base import CreditInputs, CreditSignal, gives, needs_batch
from oar.method.probes import Probe


@dataclass(frozen=True, slots=True)
class Credit:
    """token_importance (as the gate saw it), token_weights, token_advantages: each (B, T).

    Of a signal that gives token advantages the weights are |A_t| / |A|, how much a token counts whichever way; 1 where A is 0.
    """

    token_importance: Tensor
    token_weights: Tensor
    token_advantages: Tensor


def checked(signal: CreditSignal, inputs: CreditInputs) -> Tensor:
    """What the signal says, (B, T). Raises DataError for another shape or precision, and for weights that cannot be.

    Importance is checked by the gate.
    """
    found, shape, name = signal(inputs), inputs.batch.reasoning_mask.shape, type(signal).__name__
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != torch.float32:
        came = f"{tuple(found.shape)} in {found.dtype}" if isinstance(found, Tensor) else repr(type(found))
        raise DataError(f"{name} must give {gives(signal)} of shape {tuple(shape)} in torch.float32, but gave {came}.")
    if gives(signal) != "importance":
        bad = inputs.batch.completion_mask & ~torch.isfinite(found)
        if gives(signal) == "weights":
            bad |= inputs.batch.completion_mask & (found < 0)
        if bad.any():
            row = int(bad.any(dim=1).nonzero()[0])
            raise DataError(
                f"{name} must give finite {gives(signal)}, weights not negative, but row {row} holds {found[row]}."
            )
    # Padding may hold anything: times 0 it must be 0, in the loss and in what is logged.
    return found.masked_fill(~inputs.batch.completion_mask & ~torch.isfinite(found), 0.0)


@dataclass(frozen=True, slots=True)
class CreditAssigner:
    """A method under one step's probe: gives each token its share of its completion's advantage.

    What the signal gives says how (`oar.method.importance.base.gives`):
    - importance: `gate(importance, reasoning_mask)` turns it into weights (B, T), e.g. `gating.make_gate(tau=0.4, ...)`, and
      A_{i,t} = w_{i,t} A_i. With `times_surprisal` it is multiplied by -logprob of the sampled token first: what mattered,
      where the policy took a chance (docs/METHOD.md §9);
    - weights: A_{i,t} = w_{i,t} A_i, with `preserve_mass` rescaled so that a completion's weights sum to its tokens
      (where they are all 0 they stay);
    - advantages: A_{i,t} itself.
    `control`: none, or what a method is held against (`oar.method.control`). `neutral_id`: of `CreditInputs`.
    """

    signal: CreditSignal
    gate: Gate
    probe: Probe
    times_surprisal: bool = False
    preserve_mass: bool = False
    control: str = "none"
    neutral_id: int | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        batch: CompletionBatch,
        scores: Scores,
        advantages: Tensor,
        *,
        seeds: Sequence[int],
        marks: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
    ) -> Credit:
        """Of B completions: their `scores`, `advantages` (B,), a seed each, ground truth (B, T) by name where there is any, and
        the sampler's temperature.

        A signal that needs more than these (groups, the training step) is called by `assign`.
        """
        return self.assign(
            CreditInputs(model, batch, self.probe, scores, seeds, marks or {}, advantages, temperature=temperature)
        )

    def assign(self, inputs: CreditInputs) -> Credit:
        """Of B completions, under the probe of `inputs`.

        Two kinds of completions keep weight 1: those without an answer span where there is a gate and the probe needs one (the
        method's fallback to GRPO), and those of advantage 0, whose weights change nothing and so are not computed, unless
        weights compare completions. Raises DataError naming the row where what the signal gives is NaN or infinite, or negative
        and no advantage.
        """
        batch, advantages = inputs.batch, inputs.known_advantages()
        importance = torch.zeros(batch.completion_mask.shape, device=advantages.device)
        weights = torch.ones_like(importance)
        if gives(self.signal) == "advantages":
            found = checked(self.signal, replace(inputs, neutral_id=self.neutral_id))
            found = controlled(found, batch.completion_mask, self.control, inputs.seeds)
            size = advantages.abs()[:, None]
            weights = torch.where(batch.completion_mask & (size > 0), found.abs() / size, weights)
            return Credit(importance, weights, found)
        gated = gives(self.signal) == "importance"
        wanted = (advantages != 0) & (batch.has_segments | (not gated))
        together = needs_batch(self.signal)  # it compares with completions of advantage 0 too
        if together and not gated:
            wanted = torch.ones_like(wanted)
        index = wanted.nonzero()[:, 0]
        if len(index):
            inputs = replace(inputs, neutral_id=self.neutral_id)
            chosen = inputs.rows(index)
            found = checked(self.signal, inputs)[index] if together else checked(self.signal, chosen)
            mask = chosen.batch.completion_mask
            if gated:
                mask = chosen.batch.reasoning_mask
                found = found * -chosen.scores.logprobs.detach() if self.times_surprisal else found
                importance[index] = found
                found = self.gate(found, mask)
            elif self.preserve_mass:
                held = found.masked_fill(~mask, 0.0).sum(dim=1, keepdim=True)
                found = torch.where(held > 0, found * mask.sum(dim=1, keepdim=True) / held, found)
            weights[index] = controlled(found, mask, self.control, chosen.seeds)
        return Credit(importance, weights, advantages[:, None] * weights)
