"""OAR-P: how far the outcome moves when a token is masked (docs/METHOD.md §4), exactly, over a shared prefix.

Masking token t leaves keys and values before t as they were. So every completion is run once as it is, and each
counterfactual only from its masked token on, over the clean cache: T suffixes instead of T whole rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from oar.importance.base import CreditInputs, chunks
from oar.probes import ProbeInputs
from oar.scoring import read_logits


@dataclass(frozen=True, slots=True)
class PerturbationImportance:
    """I_t = divergence(P, P^(t)), clipped at 0, where y_t is replaced by the pad token and attention is untouched.

    `max_tokens_per_forward` bounds the memory: rows x (cached prefix + suffix) in one forward.
    """

    max_tokens_per_forward: int

    @torch.no_grad()
    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        importance = torch.zeros(inputs.batch.reasoning_mask.shape, device=inputs.batch.input_ids.device)
        probe_inputs = inputs.probe.inputs(inputs.batch)
        for completions in chunks(probe_inputs.lengths, self.max_tokens_per_forward):
            shown = probe_inputs.rows(completions)
            cache = DynamicCache(config=inputs.model.config)
            logits = read_logits(inputs.model, shown.read_positions, input_ids=shown.input_ids, past_key_values=cache)
            clean = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
            row, token = inputs.batch.reasoning_mask[completions].nonzero(as_tuple=True)
            masked = shown.reasoning_positions[row, token]
            # Like suffixes go together; each row holds its prefix too, so at most a chunk of whole rows fits.
            for some in chunks(shown.lengths[row], self.max_tokens_per_forward, order_by=shown.lengths[row] - masked):
                changed = _masked_outcome(inputs, shown, cache, row[some], masked[some])
                moved = inputs.probe.divergence(clean[row[some]], changed)
                importance[completions[row[some]], token[some]] = moved.clamp(min=0)
        return importance


def _masked_outcome(
    inputs: CreditInputs, shown: ProbeInputs, cache: DynamicCache, rows: Tensor, masked: Tensor
) -> Tensor:
    """The outcome of completions `rows` (R,) with the token at position `masked` (R,) of each replaced by the pad token."""
    device = rows.device
    width, reach = int((shown.lengths[rows] - masked).max()), int(masked.max())
    # Suffixes start at the left and are padded at the right; prefixes end at the right, so empty slots (negative positions)
    # are at the left and the two meet without a gap.
    query = masked[:, None] + torch.arange(width, device=device)
    prefix = masked[:, None] - reach + torch.arange(reach, device=device)
    ids = shown.input_ids[rows[:, None], query.clamp(max=shown.input_ids.shape[1] - 1)]
    ids[:, 0] = inputs.batch.pad_id
    layers: Any = cache.layers
    gathered = DynamicCache(
        [
            tuple(
                states.transpose(1, 2)[rows[:, None], prefix.clamp(min=0)].transpose(1, 2)
                for states in (layer.keys, layer.values)
            )
            for layer in layers
        ]
    )
    key = torch.cat([prefix, query], dim=1)
    logits = read_logits(
        inputs.model,
        (shown.read_positions[rows] - masked[:, None]).clamp(min=0),
        input_ids=ids,
        past_key_values=gathered,
        position_ids=query,
        attention_mask=((key >= 0)[:, None] & (key[:, None] <= query[:, :, None]))[:, None],
    )
    return inputs.probe.outcome(logits, shown.read_mask[rows], shown.read_ids[rows])
