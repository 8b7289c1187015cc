"""OAR-P written down plainly, twice: the reference of the tests, and what `make bench-importance` measures against.

Nothing here is shared with oar/importance: every counterfactual is a forward over its whole row.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from oar.method.batch import CompletionBatch


def parts(batch: CompletionBatch, row: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """A completion taken apart: prompt, reasoning, marker, answer as lists of ids."""
    prompt = batch.input_ids[row, : int(batch.prompt_lengths[row])].tolist()
    completion = batch.completion_ids[row]
    reasoning, marker, answer = (
        completion[mask[row]].tolist() for mask in (batch.reasoning_mask, batch.marker_mask, batch.answer_mask)
    )
    return prompt, reasoning, marker, answer


@torch.no_grad()
def outcome(
    model: PreTrainedModel, probe: str, conclude: int, taken_apart: tuple[list[int], list[int], list[int], list[int]]
) -> Tensor:
    """The probe's outcome on one unpadded sequence, straight from docs/METHOD.md §3."""
    prompt, reasoning, marker, answer = taken_apart
    if probe == "lt_logits":
        return model(torch.tensor([[*prompt, *reasoning, conclude]])).logits[0, -1].log_softmax(-1)
    start = len(prompt) + len(reasoning) + len(marker)
    logits = model(torch.tensor([[*prompt, *reasoning, *marker, *answer]])).logits[0]
    predicting = logits[start - 1 : start - 1 + len(answer)]
    if probe == "as_mean":
        return predicting.mean(0).log_softmax(-1)
    return predicting.log_softmax(-1)[range(len(answer)), answer].mean()


def naive_oar_p(model: PreTrainedModel, batch: CompletionBatch, probe: str, conclude: int) -> Tensor:
    """(B, T): one masked token, one forward, one completion at a time."""
    importance = torch.zeros(batch.reasoning_mask.shape)
    for row in range(len(batch)):
        prompt, reasoning, marker, answer = parts(batch, row)
        clean = outcome(model, probe, conclude, (prompt, reasoning, marker, answer))
        for t in range(len(reasoning)):
            masked = [*reasoning[:t], batch.pad_id, *reasoning[t + 1 :]]
            changed = outcome(model, probe, conclude, (prompt, masked, marker, answer))
            moved = clean - changed if probe == "as_joint" else (clean.exp() * (clean - changed)).sum()
            importance[row, t] = max(float(moved), 0.0)
    return importance


@torch.no_grad()
def batched_oar_p(model: PreTrainedModel, batch: CompletionBatch, rows_at_once: int) -> Tensor:
    """(B, T) under as_mean: T whole masked copies of a completion, `rows_at_once` in a forward; logits at the answer only."""
    importance = torch.zeros(batch.reasoning_mask.shape, device=batch.input_ids.device)
    for row in range(len(batch)):
        start = int(batch.prompt_lengths[row])
        count, first = int(batch.reasoning_mask[row].sum()), int(batch.answer_mask[row].int().argmax())
        end = first + int(batch.answer_mask[row].sum())
        ids = batch.input_ids[row, : start + end]

        def read(rows: Tensor, begin: int = start + first - 1, stop: int = start + end - 1) -> Tensor:
            hidden = model.base_model(input_ids=rows, use_cache=False).last_hidden_state
            return model.get_output_embeddings()(hidden[:, begin:stop]).float().mean(dim=1).log_softmax(dim=-1)

        clean = read(ids[None])
        for tokens in torch.arange(count, device=ids.device).split(rows_at_once):
            copies = ids.repeat(len(tokens), 1)
            copies[torch.arange(len(tokens)), start + tokens] = batch.pad_id
            importance[row, tokens] = (clean.exp() * (clean - read(copies))).sum(dim=-1).clamp(min=0)
    return importance
