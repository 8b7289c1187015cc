"""Signals that only the fidelity study knows: what OAR-G, `oar_gn` and `oar_ga` could be instead, one thing at a time."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from oar.common.errors import ConfigError
from oar.common.seeding import generator
from oar.method.forward.logprobs import read_logits, run_forward
from oar.method.forward.packing import Packing
from oar.method.importance import AttentionGradientImportance, CreditInputs
from oar.method.importance.clean import CleanPass, clean_passes, outcome_gradients

# From gradients (R, L, H) and embeddings (R, L, H) to one number for each position (R, L).
REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared_norm": lambda gradient, _: gradient.square().sum(dim=-1),
    "norm": lambda gradient, _: gradient.norm(dim=-1),
    "inner_product": lambda gradient, embedding: (gradient * embedding).sum(dim=-1).abs(),
}


@dataclass(frozen=True, slots=True)
class GradientVariant:
    """A gradient to the embeddings, of one of two objectives, reduced to a number for each token.

    noise_std: None takes the log-probability of the outcome's most likely token, as the squared gradient norm does; a number
    takes OAR-G's divergence from the clean outcome to one with so much noise on the reasoning tokens. reduction: a key of
    REDUCTIONS. So (None, squared_norm) is `oar_gn` and (1e-3, inner_product) is `oar_g`.
    """

    noise_std: float | None
    reduction: str
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ConfigError(f"reduction must be one of {', '.join(REDUCTIONS)}, but is {self.reduction!r}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask = inputs.batch.reasoning_mask
        importance = torch.zeros(mask.shape, device=mask.device)
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=self.noise_std is None):
            forward = clean.forward
            if self.noise_std is None:
                (gradient,) = outcome_gradients(inputs, clean, [forward.embeddings])
            else:
                gradient = _noisy_gradient(inputs, clean, self.noise_std)
            reduced = REDUCTIONS[self.reduction](gradient.float(), forward.embeddings.detach().float())
            row = torch.arange(len(clean.completions), device=mask.device)[:, None]
            importance[clean.completions] = forward.packing.at(reduced, row, clean.shown.reasoning_positions)
        return importance * mask


def _scaled(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    """The output, as its input times what is constant."""
    (given,) = args
    return output.detach() + (given - given.detach()) * (output / given).detach().nan_to_num()


def _halved(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.detach() + (output - output.detach()) / 2


def _scaled_and_halved(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    return _halved(module, args, _scaled(module, args, output))


def _constant(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.detach()


# By what is held, and the name of a layer's module as transformers writes Llama and Qwen2: what replaces its output.
Rule = Callable[[nn.Module, Any, Tensor], Tensor]
HELD: Mapping[str, Mapping[str, Rule]] = {
    "norms": {"input_layernorm": _scaled, "post_attention_layernorm": _scaled, "norm": _scaled},
    "gates": {"act_fn": _scaled_and_halved, "up_proj": _halved},
    "attention": {"q_proj": _constant, "k_proj": _constant},
}


@dataclass(frozen=True, slots=True)
class HeldKnockout:
    """`oar_ga` with the gradients of a model in which something is held at its value: rules of relevance propagation.

    hold, of HELD: `norms`, the factor by which RMSNorm scales; `gates`, what SiLU multiplies its input with, while either factor
    of a gated product answers for half of its change (both AttnLRP's, arXiv 2402.05602); `attention`, the weights of later
    attention, so that only values carry a change on. It needs a forward of its own, which gives what the model gives.
    """

    hold: Sequence[str]
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if not self.hold or set(self.hold) - set(HELD):
            raise ConfigError(f"hold must name some of {', '.join(HELD)}, but is {list(self.hold)}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats^2. Raises ConfigError for a model that has none of the modules."""
        rules = {name: rule for held in self.hold for name, rule in HELD[held].items()}
        named = [(name.rpartition(".")[2], module) for name, module in inputs.outcome_model.named_modules()]
        if absent := set(rules) - {name for name, _ in named}:
            raise ConfigError(
                f"hold={list(self.hold)} needs a model whose layers have {', '.join(rules)}, but there is no "
                f"{', '.join(sorted(absent))}: leave the signal out."
            )
        with ExitStack() as hooks:
            for name, module in named:
                if name in rules:
                    hooks.enter_context(module.register_forward_hook(rules[name]))
            alone = replace(inputs, scores=replace(inputs.scores, forward=None))
            return AttentionGradientImportance(self.max_tokens_per_forward)(alone)


@dataclass(frozen=True, slots=True)
class Surprisal:
    """How unlikely the sampled token was: free, since the old logprobs are there."""

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        # A logprob of rounded 0 must not become a negative importance.
        return (-inputs.scores.logprobs.detach()).clamp(min=0) * inputs.batch.reasoning_mask


def _noisy_gradient(inputs: CreditInputs, clean: CleanPass, noise_std: float) -> Tensor:
    """Gradient (N, H) of OAR-G's objective to the packed embeddings, with the draw of noise that `oar_g` takes first."""
    shown, packing = clean.shown, clean.forward.packing
    noisy = clean.forward.embeddings.detach().clone()
    counts = inputs.batch.reasoning_mask[clean.completions].sum(dim=1).tolist()
    row = torch.arange(len(counts), device=packing.starts.device)
    starts = packing.places(row, shown.reasoning_positions[:, 0]).tolist()
    for seed, start, count in zip(clean.seeds, starts, counts, strict=True):
        noise = torch.randn(count, noisy.shape[-1], generator=generator(seed, "noise")).to(noisy)
        noisy[start : start + count] += noise_std * noise
    noisy.requires_grad_()
    with torch.enable_grad():
        own = packing.at(noisy, *packing.tokens())  # the forward may hold other completions too
        forward = run_forward(inputs.model, own, Packing.of(packing.lengths, own.device))
        logits = read_logits(inputs.model, forward, shown.read_positions)
        changed = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
        (gradient,) = torch.autograd.grad(inputs.probe.divergence(clean.outcome.detach(), changed).sum(), noisy)
    return gradient
