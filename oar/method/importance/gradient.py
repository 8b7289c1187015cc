"""OAR-G and the squared gradient norm: importance from one backward to the embeddings (docs/METHOD.md §4 and §9)."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.common.seeding import generator
from oar.method.forward.logprobs import logits_of
from oar.method.importance.base import CreditInputs
from oar.method.importance.clean import CleanPass, clean_passes, outcome_gradients
from oar.method.importance.counterfactual import recompute
from oar.method.importance.in_pairs import in_pairs
from oar.method.importance.recomputed_attention import CleanKeys, Recomputation


@dataclass(frozen=True, slots=True)
class GradientImportance:
    """OAR-G: I_t = |<dJ/de_t, e_t>| with J = divergence(P_clean, P_noisy), P_clean held constant (docs/METHOD.md §4).

    The noise, N(0, sigma^2) on the embeddings of the reasoning tokens, is needed because a KL has no gradient at its own
    minimum. To first order J = n' F n / 2 with F the Fisher information of the outcome with respect to the embeddings, so
    the gradient is F n: it depends on the draw, and `noise_draws` > 1 takes the mean of I_t over so many. sigma is
    `noise_std`, with `noise_relative` times the root mean square of the completion's own reasoning embeddings.
    Only what the noise reaches is run again, from the first reasoning token on. The gradient is taken to the embeddings:
    no parameter's `.grad` is read or written (the released code writes into the policy's gradients).
    In a half-precision model the noise is smaller than what rounding does to P_clean: there the clean forward runs again
    beside the noisy one, and their difference is computed as such (in_pairs.py).
    `max_tokens_per_forward` bounds the memory: tokens of the completions whose noisy forward, with its graph, is held.
    """

    noise_std: float = 1e-3
    noise_draws: int = 1
    noise_relative: bool = False
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
        """(noise_draws, B, T): the importance of each draw on its own. Raises DataError within torch's autocast."""
        mask = inputs.batch.reasoning_mask
        if torch.is_autocast_enabled(mask.device.type):
            raise DataError(
                "OAR-G must run outside of torch.autocast, which leaves fewer digits than it takes to tell its noise: put "
                "torch.autocast(..., enabled=False) around score_completions and the credit."
            )
        importance = torch.zeros(self.noise_draws, *mask.shape, device=mask.device)
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=False):
            suffix = _Suffix.of(clean)
            noise = self._noise(inputs, clean, suffix)
            for draw in range(self.noise_draws):
                # A reference response may be longer than every completion.
                inner = _inner_product(inputs, clean, suffix, noise[draw])[:, : mask.shape[1]]
                importance[draw, clean.completions, : inner.shape[1]] = inner
        return importance * mask

    def _noise(self, inputs: CreditInputs, clean: CleanPass, suffix: "_Suffix") -> Tensor:
        """(draws, R, W, H) in float32 whatever the model's dtype, 0 where there is no reasoning."""
        counts = inputs.batch.reasoning_mask[clean.completions].sum(dim=1)
        rows, width, hidden_size = suffix.embeddings.shape
        noise = torch.zeros(rows, self.noise_draws, width, hidden_size)
        for row, (seed, count) in enumerate(zip(clean.seeds, counts.tolist(), strict=True)):
            drawn = torch.randn(self.noise_draws, count, hidden_size, generator=generator(seed, "noise"))
            noise[row, :, :count] = self.noise_std * drawn
        noise = noise.transpose(0, 1).to(counts.device)
        if not self.noise_relative:
            return noise
        reasoning = torch.arange(width, device=counts.device) < counts[:, None]
        squares = suffix.embeddings.float().square().mean(dim=-1)
        spread = ((squares * reasoning).sum(dim=1) / counts.clamp(min=1)).sqrt()
        return noise * spread[:, None, None]


@dataclass(frozen=True, slots=True)
class _Suffix:
    """Of each completion of a clean pass what comes from its first reasoning token on: W positions, padded at the right.

    embeddings (R, W, H), in float32 where the model has half precision; positions and valid (R, W); read (R, K): columns.
    """

    embeddings: Tensor
    positions: Tensor
    valid: Tensor
    read: Tensor
    keys: CleanKeys
    in_pairs: bool

    @classmethod
    def of(cls, clean: CleanPass) -> "_Suffix":
        shown = clean.shown
        start = shown.reasoning_positions[:, :1]
        width = int((shown.lengths - start[:, 0]).max())
        positions = start + torch.arange(width, device=start.device)
        row = torch.arange(len(start), device=start.device)[:, None]
        embeddings = clean.forward.packing.at(clean.forward.embeddings.detach(), row, positions)
        half = embeddings.dtype.itemsize < torch.float32.itemsize
        dtype = torch.float32 if half else embeddings.dtype
        return cls(
            embeddings.to(dtype),
            positions,
            positions < shown.lengths[:, None],
            torch.where(shown.read_mask, shown.read_positions - start, 0),
            CleanKeys(clean.forward, dtype),
            half,
        )


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


def _inner_product(inputs: CreditInputs, clean: CleanPass, suffix: _Suffix, noise: Tensor) -> Tensor:
    """|<dJ/de_t, e_t>| (R, W) for one draw of noise (R, W, H)."""
    model, shown, copies = inputs.outcome_model, clean.shown, 2 if suffix.in_pairs else 1

    def copied(rows: Tensor) -> Tensor:
        return torch.cat([rows] * copies)

    noisy = (suffix.embeddings + noise.to(suffix.embeddings.dtype)).requires_grad_()
    with torch.enable_grad(), in_pairs(model) if suffix.in_pairs else nullcontext():
        job = Recomputation(
            rows=[*range(len(noisy))] * copies,
            embeddings=torch.cat([suffix.embeddings, noisy]) if suffix.in_pairs else noisy,
            positions=copied(suffix.positions),
            valid=copied(suffix.valid),
            read=copied(suffix.read),
        )
        with recompute(model, suffix.keys, job) as hidden:
            logits = logits_of(model, hidden)
            outcome = inputs.probe.outcome(logits, copied(shown.read_mask), copied(shown.read_ids))
            before = outcome[: -len(noisy)] if suffix.in_pairs else clean.outcome
            objective = inputs.probe.divergence(before.detach(), outcome[-len(noisy) :]).sum()
            (gradient,) = torch.autograd.grad(objective, noisy)
    return (gradient.float() * suffix.embeddings.float()).sum(dim=-1).abs()
