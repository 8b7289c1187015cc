"""OAR-G and the squared gradient norm: importance from one backward to the embeddings (docs/METHOD.md §4 and §9)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.errors import ConfigError
from oar.importance.base import CreditInputs
from oar.importance.clean import CleanPass, clean_passes, outcome_gradients
from oar.importance.counterfactual import recompute
from oar.importance.recomputed_attention import CleanKeys, Recomputation
from oar.seeding import generator


@dataclass(frozen=True, slots=True)
class GradientImportance:
    """OAR-G: I_t = |<dJ/de_t, e_t>| with J = divergence(P_clean, P_noisy), P_clean held constant (docs/METHOD.md §4).

    The noise, N(0, noise_std^2) on the embeddings of the reasoning tokens, is needed because a KL has no gradient at
    its own minimum. To first order J = n' F n / 2 with F the Fisher information of the outcome with respect to the
    embeddings, so the gradient is F n: it depends on the draw, and `noise_draws` > 1 takes the mean of I_t over so many.
    Only what the noise reaches is run again, from the first reasoning token on. The gradient is taken to the embeddings:
    no parameter's `.grad` is read or written (the released code writes into the policy's gradients).
    `max_tokens_per_forward` bounds the memory of a clean forward of its own, where the update's cannot be shared.
    """

    noise_std: float = 1e-3
    noise_draws: int = 1
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if self.noise_std <= 0:
            raise ConfigError(
                f"noise_std must be above 0 (a KL has no gradient at its minimum), but is {self.noise_std}."
            )
        if self.noise_draws < 1:
            raise ConfigError(f"noise_draws must be 1 or more, but is {self.noise_draws}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T); e_t is the clean embedding."""
        return self.draws(inputs).mean(dim=0)

    def draws(self, inputs: CreditInputs) -> Tensor:
        """(noise_draws, B, T): the importance of each draw on its own."""
        mask = inputs.batch.reasoning_mask
        importance = torch.zeros(self.noise_draws, *mask.shape, device=mask.device)
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=False):
            keys = CleanKeys(clean.forward)
            noise = self._noise(inputs, clean)
            for draw in range(self.noise_draws):
                importance[draw, clean.completions] = _noisy_inner_product(inputs, clean, keys, noise[draw])
        return importance

    def _noise(self, inputs: CreditInputs, clean: CleanPass) -> Tensor:
        """(draws, R, T, H) in float32 whatever the model's dtype, 0 where there is no reasoning."""
        mask = inputs.batch.reasoning_mask[clean.completions]
        hidden_size = clean.forward.embeddings.shape[-1]
        noise = torch.zeros(len(mask), self.noise_draws, mask.shape[1], hidden_size)
        for row, (seed, count) in enumerate(
            zip(inputs.seeds[clean.completions].tolist(), mask.sum(1).tolist(), strict=True)
        ):
            drawn = torch.randn(self.noise_draws, count, hidden_size, generator=generator(seed, "noise"))
            noise[row, :, :count] = self.noise_std * drawn
        return noise.transpose(0, 1).to(mask.device)


@dataclass(frozen=True, slots=True)
class GradientNormImportance:
    """I_t = |d log P(a) / de_t|^2, a the outcome's most likely token (as_joint: the answer): no noise, one backward.

    Why the square of the norm. Replace e_t by e_t + d: to second order KL(P || P_d) = d' F_t d / 2, with F_t the Fisher
    information of the outcome with respect to e_t,
        F_t = E_{a ~ P}[ g_t(a) g_t(a)' ],   g_t(a) = d log P(a) / de_t.
    What a counterfactual replaces e_t by is, over all it could be, about as likely to lie in any direction: E[d d'] = c I,
    hence E[KL] = c tr(F_t) / 2, and tr(F_t) = E_{a ~ P} |g_t(a)|^2. With most of the mass on one token a, its term is the
    estimate. OAR-G's |<g, e_t>| instead keeps one direction of e_t, its own, and a pre-norm transformer is nearly
    invariant to exactly that one: scaling e_t is undone by the first normalisation.

    Where the update's forward can be shared this costs one backward to the embeddings and no forward at all.
    """

    max_tokens_per_forward: int = 2048

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats^2 per squared unit of embedding."""
        batch = inputs.batch
        importance = torch.zeros(batch.reasoning_mask.shape, device=batch.input_ids.device)
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=True):
            (gradient,) = outcome_gradients(inputs, clean, [clean.forward.embeddings])
            norms = gradient.float().square().sum(dim=-1)
            row = torch.arange(len(clean.completions), device=norms.device)[:, None]
            importance[clean.completions] = clean.forward.packing.at(norms, row, clean.shown.reasoning_positions)
        return importance * batch.reasoning_mask


def _noisy_inner_product(inputs: CreditInputs, clean: CleanPass, keys: CleanKeys, noise: Tensor) -> Tensor:
    """|<dJ/de_t, e_t>| (R, T) for one draw of noise (R, T, H)."""
    shown, device = clean.shown, noise.device
    start = shown.reasoning_positions[:, :1]
    width = int((shown.lengths - start[:, 0]).max())
    offset = torch.arange(width, device=device)
    positions = start + offset
    valid = positions < shown.lengths[:, None]
    row = torch.arange(len(start), device=device)
    embeddings = clean.forward.packing.at(clean.forward.embeddings.detach(), row[:, None], positions)
    noisy = embeddings.clone()
    tokens = min(width, noise.shape[1])
    noisy[:, :tokens] += noise[:, :tokens].to(noisy.dtype)
    noisy.requires_grad_()
    read = torch.where(shown.read_mask, shown.read_positions - start, 0)
    with torch.enable_grad():
        hidden = recompute(inputs.model, keys, Recomputation(row, noisy, positions, valid, read))
        logits = inputs.model.get_output_embeddings()(hidden).float()
        changed = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
        (gradient,) = torch.autograd.grad(inputs.probe.divergence(clean.outcome.detach(), changed).sum(), noisy)
    inner = (gradient.float() * embeddings.float()).sum(dim=-1).abs()
    found = torch.zeros(noise.shape[:2], device=device)
    found[:, :tokens] = inner[:, :tokens]
    return found * inputs.batch.reasoning_mask[clean.completions]
