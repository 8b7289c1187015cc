"""What the learner's model says about given tokens: logits only where they are read, never of prompt positions."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.batch import CompletionBatch


def read_logits(model: PreTrainedModel, read_positions: Tensor, **inputs: Any) -> Tensor:
    """Logits (R, K, V), float32, at `read_positions` (R, K) of rows given as `input_ids` (R, L) or `inputs_embeds` (R, L, H).

    The rows are padded at the right only, hence no attention mask unless a cache is given. The vocabulary projection
    sees R x K positions.
    """
    # use_cache=False makes no cache, but one that is given is read and filled.
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    row = torch.arange(hidden.shape[0], device=hidden.device)[:, None]
    return model.get_output_embeddings()(hidden[row, read_positions]).float()


def completion_logprobs(model: PreTrainedModel, batch: CompletionBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each completion token and the policy's entropy there: both (B, T), 0 outside the mask.

    Both are of the distribution that was sampled from, so logits are divided by `temperature` first.
    """
    hidden = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    row, token = batch.completion_mask.nonzero(as_tuple=True)
    # The hidden state one position before a token is the one that predicts it.
    predicting = hidden[row, batch.prompt_lengths[row] + token - 1]
    logits = model.get_output_embeddings()(predicting).float() / temperature
    all_logprobs = logits.log_softmax(dim=-1)
    chosen = all_logprobs.gather(1, batch.completion_ids[row, token][:, None])[:, 0]
    entropy = -(all_logprobs.detach().exp() * all_logprobs.detach()).sum(dim=-1)
    empty = torch.zeros(batch.completion_mask.shape, device=hidden.device)
    return empty.index_put((row, token), chosen), empty.index_put((row, token), entropy)
