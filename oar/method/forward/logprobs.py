"""What the learner's model says about given tokens: logits only where they are read, never of prompt positions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.method.batch import CompletionBatch, same_beginnings
from oar.method.forward.packing import Attended, Packing, run_packed
from oar.method.forward.projection import token_scores


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward over R packed sequences, N tokens in the row, kept so that a credit signal can go on from it.

    embeddings (N, H): the graph's input; hidden (N, H): the last hidden states; layers: what each layer's attention was given;
    packing: where the sequences stand in these.
    """

    embeddings: Tensor
    hidden: Tensor
    layers: Sequence[Attended]
    packing: Packing

    def rows(self, index: Tensor) -> "Forward":
        """Some of the sequences. The tensors stay whole: only of the whole input can a gradient be taken."""
        return replace(self, packing=self.packing.rows(index))


@dataclass(frozen=True, slots=True)
class Scores:
    """What the policy says of B completions.

    logprobs (B, T) of the tokens and entropy (B, T) of the policy there, 0 outside the mask; both are of the distribution
    that was sampled from. `forward`: what they were read off, None where it was not kept.
    """

    logprobs: Tensor
    entropy: Tensor
    forward: Forward | None = None

    def rows(self, index: Tensor) -> "Scores":
        """The scores of some of the completions."""
        forward = None if self.forward is None else self.forward.rows(index)
        return Scores(self.logprobs[index], self.entropy[index], forward)

    def numbers(self) -> "Scores":
        """Logprobs and entropy alone, without graph and forward."""
        return replace(self, logprobs=self.logprobs.detach(), forward=None)


def pack(input_ids: Tensor, lengths: Tensor, prompt_lengths: Tensor | None = None) -> tuple[Tensor, Packing]:
    """The token ids (N,) of rows (R, L) that are padded at the right, without the padding, and where they stand.

    A prompt of `prompt_lengths` (R,) that several rows have stands there once but for its last token, from which the first of a
    completion is predicted: so all that credit is read from, or differentiated to, is a completion's own.
    """
    if prompt_lengths is None:
        packing = Packing.of(lengths.tolist(), lengths.device)
    else:
        told = torch.column_stack([lengths, prompt_lengths, input_ids]).cpu()  # a GPU is waited for once
        whole, prompts = told[:, :2].T.tolist()
        alike = same_beginnings(told[:, 2:], prompts)
        packing = Packing.of(whole, lengths.device, [length - 1 for length in prompts], alike)
    return input_ids[packing.stored()], packing


def pack_completions(batch: CompletionBatch) -> tuple[Tensor, Packing]:
    """The token ids (N,) of B prompts with their completions, each prompt once, and where they stand."""
    lengths = batch.prompt_lengths + batch.completion_lengths
    return pack(batch.input_ids, lengths, batch.prompt_lengths)


def run_forward(model: PreTrainedModel, embeddings: Tensor, packing: Packing) -> Forward:
    """Run the model over packed input embeddings (N, H)."""
    hidden, layers = run_packed(model, embeddings, packing)
    return Forward(embeddings, hidden, layers, packing)


def run_completions(model: PreTrainedModel, batch: CompletionBatch, *, leaf: bool = False) -> Forward:
    """A forward over B prompts with their completions. With `leaf` the embeddings are cut off from their matrix, and gradients
    can be taken to them whatever is trained.
    """
    ids, packing = pack_completions(batch)
    embeddings = model.get_input_embeddings()(ids)
    return run_forward(model, embeddings.detach().requires_grad_() if leaf else embeddings, packing)


def score_completions(
    model: PreTrainedModel, batch: CompletionBatch, *, temperature: float, leaf: bool = False
) -> Scores:
    """Logprobs and entropy of B completions; logits are divided by `temperature` first, as the sampler does."""
    forward = run_completions(model, batch, leaf=leaf)
    row, token = batch.completion_mask.nonzero(as_tuple=True)
    states, tokens = predicting_states(forward, batch, row, token), batch.completion_ids[row, token]
    chosen, entropy = token_scores(states, model.get_output_embeddings(), tokens, temperature)
    empty = chosen.new_zeros(batch.completion_mask.shape)
    return Scores(empty.index_put((row, token), chosen), empty.index_put((row, token), entropy), forward)


def predicting_states(forward: Forward, batch: CompletionBatch, row: Tensor, token: Tensor) -> Tensor:
    """The hidden states (N, H) from which tokens `token` (N,) of completions `row` (N,) are predicted."""
    return forward.packing.at(
        forward.hidden, row, batch.prompt_lengths[row] + token - 1
    )  # one position before the token


def read_logits(model: PreTrainedModel, forward: Forward, read_positions: Tensor) -> Tensor:
    """Logits (R, K, V), float32, at `read_positions` (R, K) of a forward: the projection sees R x K hidden states."""
    row = torch.arange(len(read_positions), device=read_positions.device)[:, None]
    return logits_of(model, forward.packing.at(forward.hidden, row, read_positions))


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """(..., V) in float32 from last hidden states (..., H); of a sequence-classification model its scores, V = 1."""
    head: Any = model.get_output_embeddings() or model.score
    logits: Tensor = head(hidden)
    return logits.float()
