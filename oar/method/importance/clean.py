"""The clean forward that every outcome signal starts from: the update's own where it can be shared, else a new one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from oar.method.forward.logprobs import Forward, pack, read_logits, run_forward
from oar.method.importance.base import CreditInputs, chunks
from oar.method.probes import ProbeInputs


@dataclass(frozen=True, slots=True)
class CleanPass:
    """Some rows of a batch, run as a probe shows them.

    completions (R,): which rows; seeds: of their random draws; shown: what the probe shows of them; outcome: their clean outcome.
    """

    completions: Tensor
    seeds: Sequence[int]
    shown: ProbeInputs
    forward: Forward
    outcome: Tensor


def clean_passes(inputs: CreditInputs, max_tokens: int, *, graph: bool) -> Iterator[CleanPass]:
    """All completions of `inputs`, at most `max_tokens` tokens at a time, padding included; one row at least.

    The forward that scored the completions is shared where it was kept and the probe reads the completion as it is, by the
    policy (a causal model does not care what comes after). With `graph` the outcome can be differentiated to
    `forward.embeddings`; a shared one is then a single pass, since each backward runs through all of it.
    """
    shown = inputs.probe.inputs(inputs.batch)
    kept = inputs.scores.forward
    shared = (
        kept is not None
        and inputs.probe.model is None
        and (kept.embeddings.requires_grad or not graph)
        and _is_a_prefix(shown, inputs.batch.input_ids)
    )
    if kept is not None and shared and graph:
        everything = torch.arange(len(inputs.batch), device=shown.lengths.device)
        yield _read(inputs, everything, inputs.seeds, shown, kept, graph=True)
        return
    embed = inputs.outcome_model.get_input_embeddings()
    for rows in chunks(shown.lengths.tolist(), max_tokens):
        completions = torch.tensor(rows, device=shown.lengths.device)
        some = shown.rows(completions)
        if kept is not None and shared:
            forward = kept.rows(completions)
        else:
            with torch.set_grad_enabled(graph):
                prompt_lengths = inputs.batch.prompt_lengths[completions]
                ids, packing = pack(some.input_ids, some.lengths, prompt_lengths)
                forward = run_forward(inputs.outcome_model, embed(ids).detach().requires_grad_(graph), packing)
        yield _read(inputs, completions, [inputs.seeds[row] for row in rows], some, forward, graph=graph)


def outcome_gradients(
    inputs: CreditInputs, clean: CleanPass, of: Sequence[Tensor] | Sequence[GradientEdge]
) -> tuple[Tensor, ...]:
    """Gradients of the log-likelihood of each completion's outcome with respect to tensors of its forward's graph.

    No parameter's `.grad` is touched, and the graph is kept for whoever it belongs to.
    """
    with torch.enable_grad():
        objective = inputs.probe.log_likelihood(clean.outcome).sum()
    return torch.autograd.grad(objective, of, retain_graph=True)


def _read(
    inputs: CreditInputs,
    completions: Tensor,
    seeds: Sequence[int],
    shown: ProbeInputs,
    forward: Forward,
    *,
    graph: bool,
) -> CleanPass:
    with torch.set_grad_enabled(graph):
        logits = read_logits(inputs.outcome_model, forward, shown.read_positions)
        outcome = inputs.probe.outcome(logits, shown.read_mask, shown.read_ids)
    return CleanPass(completions, seeds, shown, forward, outcome)


def _is_a_prefix(shown: ProbeInputs, input_ids: Tensor) -> bool:
    """Whether each row of the probe is the beginning of the completion's own row."""
    width = shown.input_ids.shape[1]
    if width > input_ids.shape[1]:
        return False
    position = torch.arange(width, device=input_ids.device)
    same = (shown.input_ids == input_ids[:, :width]) | (position >= shown.lengths[:, None])
    return bool(same.all())
