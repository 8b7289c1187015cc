"""What a counterfactual does to the model besides moving the answer: is its input one that the model never saw?

Written plainly, every counterfactual a forward over its whole row, so that what the model attends to can be looked at; for a few
completions, not for training.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from oar.analysis.signals.examine import by_completion
from oar.method.forward.packing import AttentionNamed
from oar.method.importance import CreditInputs
from oar.method.importance.clean import clean_passes
from oar.method.importance.replacements import mean_embedding, replacement_ids
from oar.statistics.attribution import Floats

NEXT_TOKEN, CONTINUATION, ATTENTION = "next_token", "continuation", "attention"
_MAX_TOKENS = 4096  # of a clean forward


def replaced_tokens(kind: str, inputs: CreditInputs) -> list[NDArray[np.int_]]:
    """Of each completion the ids (T,) that OAR-P with this counterfactual puts in its reasoning tokens' places."""
    ids, mask = inputs.batch.completion_ids.clone(), inputs.batch.reasoning_mask
    for clean in clean_passes(inputs, _MAX_TOKENS, graph=False):
        row, token = mask[clean.completions].nonzero(as_tuple=True)
        ids[clean.completions[row], token] = replacement_ids(kind, inputs, clean, row, token)
    return by_completion(ids, mask)


@torch.no_grad()
def disturbance(inputs: CreditInputs, row: int, kind: str, replaced: NDArray[np.int_]) -> dict[str, Floats]:
    """Of completion `row`, for each of its T reasoning tokens changed to `replaced` (T,): three values, (T,) each.

    Under `mean_embedding` the token is changed to the mean of all embeddings, whatever `replaced` is.

    next_token: KL in nats between what the model expects right after the token, unchanged and changed. continuation: by how
    many nats per token the rest of the reasoning gets less likely. attention: the share of its attention that a later
    reasoning token gives to the changed one, mean over layers, heads and these tokens. NaN where nothing comes after, and for
    next_token under `knockout`, which leaves the token and so what is expected after it.
    """
    batch = inputs.batch
    start, count = int(batch.prompt_lengths[row]), int(batch.reasoning_mask[row].sum())
    ids = batch.input_ids[row, : start + count]
    places = torch.arange(count, device=ids.device)
    copies = ids.repeat(count, 1)
    copies[places, start + places] = torch.from_numpy(replaced).to(ids)
    embed = inputs.model.get_input_embeddings()
    changed = embed(copies)
    if kind == "mean_embedding":
        changed[places, start + places] = mean_embedding(inputs.model)
    unseen = start + places if kind == "knockout" else None
    expected, attention = _expectations(inputs.model, changed, start, unseen)  # (T, T, V), (T, L, L)
    clean = _expectations(inputs.model, embed(ids[None]), start)[0][0]  # (T, V)

    next_token = (clean.exp() * (clean - expected[places, places])).sum(dim=-1)
    if kind == "knockout":
        next_token = torch.full_like(next_token, torch.nan)
    predicting, following = places[:-1], ids[start + 1 :]
    rise = clean[predicting, following] - expected[:, predicting, following]
    # What the changed token itself is taken for is no part of the continuation, and neither is what came before it.
    later = torch.arange(1, count, device=ids.device) > places[:, None]
    many = later.sum(dim=1)
    received = attention[places, start:, start + places][:, 1:]
    found = {
        NEXT_TOKEN: next_token,
        CONTINUATION: (rise * later).sum(dim=1) / many,
        ATTENTION: (received * later).sum(dim=1) / many,
    }
    return {name: values.double().cpu().numpy() for name, values in found.items()}


def unchanged_attention(inputs: CreditInputs, row: int) -> Floats:
    """The attention of `disturbance` where nothing is changed, (T,)."""
    batch = inputs.batch
    own = batch.completion_ids[row][batch.reasoning_mask[row]].cpu().numpy()
    return disturbance(inputs, row, "pad", own)[ATTENTION]


@torch.no_grad()
def _expectations(
    model: PreTrainedModel, embeddings: Tensor, start: int, unseen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of rows (R, L, H) what they expect after each position from `start` on, log-probabilities (R, L - start, V), and the mean
    attention (R, L, L), query by key.

    unseen (R,): of each row a position that no later one attends to.
    """
    (rows, length, _), device = embeddings.shape, embeddings.device
    position = torch.arange(length, device=device)
    seen = (position <= position[:, None]).repeat(rows, 1, 1)
    if unseen is not None:
        hidden = (position == unseen[:, None])[:, None, :] & (position > unseen[:, None])[:, :, None]
        seen &= ~hidden
    bias = torch.zeros(rows, 1, length, length, dtype=model.dtype, device=device)
    bias.masked_fill_(~seen[:, None], torch.finfo(model.dtype).min)
    with AttentionNamed(model, "eager"):
        output = model.base_model(
            inputs_embeds=embeddings, attention_mask=bias, output_attentions=True, use_cache=False
        )
    logits = model.get_output_embeddings()(output.last_hidden_state[:, start:]).float()
    attention = torch.stack([layer.mean(dim=1) for layer in output.attentions]).mean(dim=0)
    return logits.log_softmax(dim=-1), attention.float()
