"""The optimal token baseline: what a token's advantage is measured from depends on where it stands (arXiv 2602.07078)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.method.forward.logprobs import predicting_states, run_completions
from oar.method.forward.projection import rows_at_once
from oar.method.importance.base import CreditInputs, chunks

EPSILON = 1e-8  # of verl, in the denominator


@dataclass(frozen=True, slots=True)
class TokenBaseline:
    """A_t = R - B_t with B_t = sum_i R_i W_it / sum_i W_it over the group's completions that are at least t tokens long.

    W_it = sum over j <= t of (1 - 2 p_j + sum_v p_j(v)^2): the squared gradient norm of log p_j to the logits, summed up to t.
    The advantage is not divided by a deviation. A group of one has no baseline. `lone_tail`: where only the longest completion
    is left its baseline would be its own reward; true puts 0 there, as verl does by default, so that its A_t is R.
    """

    lone_tail: bool = True
    max_tokens_per_forward: int = 2048
    gives: ClassVar[Literal["advantages"]] = "advantages"
    needs_batch: ClassVar[bool] = True
    reads_rewards: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        mask, groups = inputs.batch.completion_mask, inputs.known_groups()
        energy = 1 - 2 * inputs.scores.logprobs.detach().exp() + self.collision(inputs)
        weight = torch.where(mask, energy, 0.0).cumsum(dim=1) * mask
        rewards = inputs.known_rewards().float()[:, None]
        same = (groups[:, None] == groups).float()
        baseline = same @ (rewards * weight) / (same @ weight + EPSILON)
        alone = same @ mask.float() == 1
        single = (same.sum(dim=1) == 1)[:, None]
        return rewards - torch.where(single | (alone & self.lone_tail), 0.0, baseline)

    def collision(self, inputs: CreditInputs) -> Tensor:
        """Sum over the vocabulary of squared probabilities (B, T): that two draws would be one token. 0 outside the mask."""
        batch, head = inputs.batch, inputs.model.get_output_embeddings()
        found = torch.zeros(batch.completion_mask.shape, device=batch.input_ids.device)
        for part in chunks((batch.prompt_lengths + batch.completion_lengths).tolist(), self.max_tokens_per_forward):
            rows = torch.tensor(part, device=batch.input_ids.device)
            some = batch.rows(rows)
            forward = run_completions(inputs.model, some)
            row, token = some.completion_mask.nonzero(as_tuple=True)
            states = predicting_states(forward, some, row, token)
            size = rows_at_once(inputs.model.config.vocab_size, states.device)
            logits = (head(held).float() / inputs.temperature for held in states.split(size))
            found[rows[row], token] = torch.cat([(2 * some.log_softmax(dim=-1)).exp().sum(dim=-1) for some in logits])
        return found
