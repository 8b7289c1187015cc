"""OAR-P written down plainly: every counterfactual is a forward over its whole row, and nothing is shared with oar/method."""

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
