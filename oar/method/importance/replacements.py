"""What a counterfactual puts in a token's place (docs/METHOD.md §7.5: is the mask itself an artefact?)."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.common.seeding import generator
from oar.method.forward.logprobs import Forward, run_completions
from oar.method.forward.projection import rows_at_once
from oar.method.importance.base import CreditInputs
from oar.method.importance.clean import CleanPass

_EMBEDDED_AT_ONCE = 4096  # tokens of the vocabulary


def replacement_ids(
    kind: str, inputs: CreditInputs, clean: CleanPass, row: Tensor, token: Tensor, draw: int = 0
) -> Tensor:
    """The token ids (N,) that replace reasoning tokens (row, token), each (N,), of a clean pass's completions.

    pad: the pad token. text: the token that the configuration names. random_token: any token of the vocabulary but the pad
    and the one that stands there. resampled: a draw from the policy at that position, at temperature 1, whoever reads it; it may
    be the token itself. knockout, mean_embedding: the token itself, since what changes is who attends to it, or its embedding
    (`mean_embedding`). The draws of a completion come from its own seed, one for each of its tokens and each `draw`.
    """
    position = clean.shown.reasoning_positions[row, token]
    own = clean.shown.input_ids[row, position]
    if kind in ("knockout", "mean_embedding"):
        return own
    if kind in ("pad", "text"):
        return torch.full_like(own, inputs.batch.pad_id if kind == "pad" else inputs.known_neutral_id())
    uniform = _uniform_draws(inputs, clean, draw)[row, token]
    if kind == "random_token":
        return _other_token(uniform, own, inputs.batch.pad_id, _vocabulary(inputs))
    forward = _policys_forward(inputs, clean)
    return _resampled(uniform, inputs, forward.packing.at(forward.hidden, row, position - 1))


def _vocabulary(inputs: CreditInputs) -> int:
    """How many ids both the policy and the model that is measured have embeddings for."""
    return min(int(model.config.vocab_size) for model in (inputs.model, inputs.outcome_model))


def _policys_forward(inputs: CreditInputs, clean: CleanPass) -> Forward:
    """That of the completions of a pass; the pass itself may be of another model."""
    if inputs.probe.model is None:
        return clean.forward
    kept = inputs.scores.forward
    return kept.rows(clean.completions) if kept else run_completions(inputs.model, inputs.batch.rows(clean.completions))


@torch.no_grad()
def mean_embedding(model: PreTrainedModel) -> Tensor:
    """(H,) in float32: the mean of the input embeddings of all tokens."""
    embed, vocabulary = model.get_input_embeddings(), int(model.config.vocab_size)
    # Embedded like any tokens: a sharded matrix cannot be read as a whole.
    parts = torch.arange(vocabulary, device=model.device).split(_EMBEDDED_AT_ONCE)
    total = torch.stack([embed(ids).double().sum(dim=0) for ids in parts]).sum(dim=0)
    return (total / vocabulary).float()


def _uniform_draws(inputs: CreditInputs, clean: CleanPass, draw: int) -> Tensor:
    """(R, T) in [0, 1)."""
    width = inputs.batch.completion_mask.shape[1]
    lengths = inputs.batch.completion_lengths[clean.completions].tolist()
    draws = torch.zeros(len(lengths), width)
    for row, (seed, length) in enumerate(zip(clean.seeds, lengths, strict=True)):
        again = (draw,) if draw else ()
        draws[row, :length] = torch.rand(length, generator=generator(seed, "replacement", *again))
    return draws.to(clean.completions.device)


def _other_token(uniform: Tensor, own: Tensor, pad_id: int, vocabulary: int) -> Tensor:
    """Uniform over the vocabulary without two ids: numbers below V - 2 that step over both."""
    first, second = own.clamp(max=pad_id), own.clamp(min=pad_id)
    drawn = (uniform * (vocabulary - 2)).long()
    drawn = drawn + (drawn >= first)
    return (drawn + (drawn >= second)).clamp(max=vocabulary - 1)


def _resampled(uniform: Tensor, inputs: CreditInputs, predicting: Tensor) -> Tensor:
    """Draws from the policy by inverting its distribution function; predicting (N, H) are the hidden states before."""
    drawn = []
    size = rows_at_once(_vocabulary(inputs), predicting.device)
    for states, level in zip(predicting.split(size), uniform.split(size), strict=True):
        probabilities = inputs.model.get_output_embeddings()(states).float().softmax(dim=-1)
        cumulative = probabilities.cumsum(dim=-1)
        # A sum that ends a little below 1 must not lead past the vocabulary.
        drawn.append(torch.searchsorted(cumulative, level[:, None] * cumulative[:, -1:], right=True)[:, 0])
    return torch.cat(drawn).clamp(max=_vocabulary(inputs) - 1)
