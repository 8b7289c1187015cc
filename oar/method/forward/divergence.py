"""How far two distributions over the whole vocabulary are apart at each token, without all logits in memory."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from oar.method.forward.projection import rows_at_once

Measure = Callable[[Tensor, Tensor], Tensor]  # log-probabilities (n, V) of student and teacher -> (n,)


def divergences(
    measure: Measure,
    student: Tensor,
    teacher: Tensor,
    student_head: nn.Module,
    teacher_head: nn.Module,
    temperature: float,
) -> Tensor:
    """`measure` (N,) of softmax(logits / temperature), where linear heads read hidden states (N, H) of student and teacher.

    Gradients flow to the student's states and head. Some tokens at a time: their logits are computed again in the backward
    pass, so that no more than a block of them is held at once.
    """

    def part(own: Tensor, other: Tensor) -> Tensor:
        with torch.no_grad():
            target = log_probabilities(other, teacher_head, temperature)
        return measure(log_probabilities(own, student_head, temperature), target)

    rows = rows_at_once(len(student_head.get_parameter("weight")), student.device)
    parts = zip(student.split(rows), teacher.split(rows), strict=True)
    return torch.cat([checkpoint(part, *pair, use_reentrant=False, preserve_rng_state=False) for pair in parts])


def log_probabilities(hidden: Tensor, head: nn.Module, temperature: float) -> Tensor:
    """(n, V) in float32 at least."""
    logits = linear(hidden, head.get_parameter("weight"), getattr(head, "bias", None))
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(dim=-1)
