"""The divergence of the policy's next-token distributions from those of a teacher with a privileged look."""

import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.method.forward.divergence import Measure, divergences
from oar.method.forward.logprobs import predicting_states
from oar.method.importance.base import CreditInputs
from oar.method.importance.privileged import teacher_states


def distilled(inputs: CreditInputs, measure: Measure, max_tokens: int) -> Tensor:
    """`measure` of student and teacher at each token, (B, T) with a gradient to the student; 0 where there is no privileged look.

    The student is read off the update's own forward. Raises DataError where that was not kept.
    """
    batch, teacher = inputs.known_contexts(), inputs.teacher or inputs.model
    if inputs.scores.forward is None:
        raise DataError("A divergence from a teacher needs the update's own forward, but was called without.")
    wanted = batch.completion_mask & batch.has_context[:, None]
    found = torch.zeros(wanted.shape, device=wanted.device)
    if not wanted.any():
        return found
    student = predicting_states(inputs.scores.forward, batch)[wanted[batch.completion_mask]]
    taught = teacher_states(inputs, max_tokens)[wanted]
    heads = inputs.model.get_output_embeddings(), teacher.get_output_embeddings()
    return found.masked_scatter(wanted, divergences(measure, student, taught, *heads, inputs.temperature))
