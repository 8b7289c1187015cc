"""What the learner's model says about given tokens: logits only where they are read, never of prompt positions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.batch import CompletionBatch
from oar.projection import token_scores
from oar.recording import Attended, recorded_attention


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward over rows padded at the right, kept so that a credit signal can go on from it.

    hidden (R, L, H): the last hidden states; layers: what each layer's attention was given; embeddings (B, L, H): the graph's
    input, of which row r here is row `index[r]`.
    """

    embeddings: Tensor
    hidden: Tensor
    layers: Sequence[Attended]
    index: Tensor

    def rows(self, index: Tensor) -> "Forward":
        """Some of the rows; the graph's input stays whole, since only of the whole can a gradient be taken."""
        layers = [layer.rows(index) for layer in self.layers]
        return replace(self, hidden=self.hidden[index], layers=layers, index=self.index[index])


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


def run_forward(model: PreTrainedModel, embeddings: Tensor) -> Forward:
    """Run the model over input embeddings (B, L, H); rows padded at the right need no attention mask."""
    with recorded_attention(model) as layers:
        hidden = model.base_model(inputs_embeds=embeddings, use_cache=False, recorded=layers).last_hidden_state
    return Forward(embeddings, hidden, layers, torch.arange(len(hidden), device=hidden.device))


def score_completions(model: PreTrainedModel, batch: CompletionBatch, *, temperature: float) -> Scores:
    """Logprobs and entropy of B completions; logits are divided by `temperature` first, as the sampler does."""
    forward = run_forward(model, model.get_input_embeddings()(batch.input_ids))
    row, token = batch.completion_mask.nonzero(as_tuple=True)
    # The hidden state one position before a token is the one that predicts it.
    predicting = forward.hidden[row, batch.prompt_lengths[row] + token - 1]
    chosen, entropy = token_scores(
        predicting, model.get_output_embeddings(), batch.completion_ids[row, token], temperature
    )
    empty = chosen.new_zeros(batch.completion_mask.shape)
    return Scores(empty.index_put((row, token), chosen), empty.index_put((row, token), entropy), forward)


def read_logits(model: PreTrainedModel, hidden: Tensor, read_positions: Tensor) -> Tensor:
    """Logits (R, K, V), float32, of hidden states (R, L, H) at `read_positions` (R, K): the projection sees R x K of them."""
    row = torch.arange(len(hidden), device=hidden.device)[:, None]
    return model.get_output_embeddings()(hidden[row, read_positions]).float()
