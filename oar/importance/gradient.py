"""OAR-G: the gradient proxy of OAR-P, one backward to the embeddings (docs/METHOD.md §4)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.errors import ConfigError
from oar.importance.base import CreditInputs, chunks
from oar.scoring import read_logits


@dataclass(frozen=True, slots=True)
class GradientImportance:
    """I_t = |<dJ/de_t, e_t>| with J = divergence(P_clean, P_noisy), P_clean held constant.

    The noise, N(0, noise_std^2) on the embeddings of the reasoning tokens, is needed because a KL has no gradient at
    its own minimum. The gradient is taken to the embeddings only: no parameter's `.grad` is read or written (the
    released code writes into the policy's gradients). `max_tokens_per_forward` bounds the memory.
    """

    noise_std: float
    max_tokens_per_forward: int

    def __post_init__(self) -> None:
        if self.noise_std <= 0:
            raise ConfigError(
                f"noise_std must be above 0 (a KL has no gradient at its minimum), but is {self.noise_std}."
            )

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T); e_t is the clean embedding."""
        importance = torch.zeros(inputs.batch.reasoning_mask.shape, device=inputs.batch.input_ids.device)
        probe_inputs = inputs.probe.inputs(inputs.batch)
        row, token = inputs.batch.reasoning_mask.nonzero(as_tuple=True)
        position = probe_inputs.reasoning_positions[row, token]
        embedding = inputs.model.get_input_embeddings()
        # Drawn for all tokens at once, in float32, so that neither chunks nor the model's dtype change it.
        width = embedding(inputs.batch.input_ids[:1, :1]).shape[-1]
        noise = self.noise_std * torch.randn(len(row), width, generator=inputs.generator).to(row.device)
        for completions in chunks(probe_inputs.lengths, self.max_tokens_per_forward):
            shown = probe_inputs.rows(completions)
            chosen, local = (row[:, None] == completions).nonzero(as_tuple=True)
            with torch.no_grad():
                clean_embeds = embedding(shown.input_ids)
                logits = read_logits(inputs.model, shown.read_positions, inputs_embeds=clean_embeds)
                clean = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
            noisy_embeds = clean_embeds.clone()
            noisy_embeds[local, position[chosen]] += noise[chosen].to(clean_embeds.dtype)
            noisy_embeds.requires_grad_()
            with torch.enable_grad():
                logits = read_logits(inputs.model, shown.read_positions, inputs_embeds=noisy_embeds)
                noisy = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
                (gradient,) = torch.autograd.grad(inputs.probe.divergence(clean, noisy).sum(), noisy_embeds)
            inner = (gradient.float() * clean_embeds.float()).sum(dim=-1).abs()
            importance[row[chosen], token[chosen]] = inner[local, position[chosen]]
        return importance
