"""What a teacher with a privileged look says of a completion's tokens: the same ids behind another prompt, without a graph."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oar.method.forward.logprobs import pack_completions, predicting_states, run_forward, score_completions
from oar.method.importance.base import CreditInputs


@dataclass(frozen=True, slots=True)
class Schedule:
    """A factor in [0, 1] by training step: up from 0 over `warmup_steps`, from step `decay_from` on down to 0 over `decay_steps`.

    Both are linear; 0 steps: none of that.
    """

    warmup_steps: int = 0
    decay_from: int = 0
    decay_steps: int = 0

    def __call__(self, step: int) -> float:
        """In step `step`, from 0."""
        rising = min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0
        falling = 1.0 - (step - self.decay_from) / self.decay_steps if self.decay_steps else 1.0
        return rising * min(1.0, max(0.0, falling))


@torch.no_grad()
def teacher_gap(inputs: CreditInputs, max_tokens: int) -> Tensor:
    """lp_T - lp_S, (B, T) in nats: what a token gains in log-probability by the privileged look; 0 where there is none.

    lp_S: the policy's own (`inputs.scores`), lp_T: the teacher's, at the same temperature. `max_tokens` per forward bound the
    memory. Raises DataError where nobody has made contexts.
    """
    batch, teacher = inputs.known_contexts(), inputs.teacher or inputs.model
    gap = torch.zeros(batch.completion_mask.shape, device=batch.input_ids.device)
    for rows in _parts(inputs, max_tokens):
        scored = score_completions(teacher, batch.rows(rows).in_context(), temperature=inputs.temperature)
        gap[rows] = scored.logprobs - inputs.scores.logprobs[rows].detach()
    return gap * batch.completion_mask


@torch.no_grad()
def teacher_states(inputs: CreditInputs, max_tokens: int) -> Tensor:
    """The teacher's hidden states (B, T, H) that predict the tokens behind the privileged prompt; 0 where there is none."""
    batch, teacher = inputs.known_contexts(), inputs.teacher or inputs.model
    embed = teacher.get_input_embeddings()
    found = embed.get_parameter("weight").new_zeros(*batch.completion_mask.shape, teacher.config.hidden_size)
    for rows in _parts(inputs, max_tokens):
        some = batch.rows(rows).in_context()
        ids, packing = pack_completions(some)
        row, token = some.completion_mask.nonzero(as_tuple=True)
        found[rows[row], token] = predicting_states(run_forward(teacher, embed(ids), packing), some, row, token)
    return found


def _parts(inputs: CreditInputs, max_tokens: int) -> tuple[Tensor, ...]:
    """Completions that have a privileged prompt, at most `max_tokens` tokens at a time."""
    index = inputs.batch.has_context.nonzero()[:, 0]
    if not len(index):
        return ()
    chosen = inputs.batch.rows(index).in_context()
    parts = chosen.micro_batches(torch.arange(len(index), device=index.device), max_tokens)
    return tuple(index[part] for part in parts)
