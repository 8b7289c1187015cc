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
    row, token = (batch.completion_mask & batch.has_context[:, None]).nonzero(as_tuple=True)
    found = torch.zeros(batch.completion_mask.shape, device=row.device)
    if not len(row):
        return found
    student = predicting_states(inputs.scores.forward, batch, row, token)
    taught = teacher_states(inputs, max_tokens)[row, token]
    heads = inputs.model.get_output_embeddings(), teacher.get_output_embeddings()
    return found.index_put((row, token), divergences(measure, student, taught, *heads, inputs.temperature))
