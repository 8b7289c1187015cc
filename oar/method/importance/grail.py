"""GRAIL: weights from how much the final answer's log-likelihood hangs on each token's input (arXiv 2606.04889)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from oar.common.errors import ConfigError, DataError
from oar.method.forward.logprobs import Scores, score_completions
from oar.method.importance.base import CreditInputs, chunks

LEAVES = ("embeddings", "first", "middle", "last")
SHIFTS = {"released": -1, "own_token": 0}  # from a token's own position to that of its leaf
SYMMETRIES = ("wrong", "correct", "both")
TINY = 1e-8  # of the released code, in the logarithm and in the variance


@dataclass(frozen=True, slots=True)
class GrailWeights:
    """w_t = clip(mean + spread z_t, least, most), z the standard score over the completion of log |g_t * e_t|_2.

    g = d L / d e with L = -sum of log p over the answer and its marker, e the leaf: input embeddings, or the output of the
    first, the middle or the last but one layer. `leaf_shift`: the released code takes the leaf one position before a token,
    which predicts it; of embeddings that is the token before (`own_token` mends it). Behind the score, whatever the rest: answer
    tokens weigh `most`, the marker and what follows the answer `mean`. A completion without an answer weighs 1, and so does, its
    answer apart, one that `rollout_symmetry` leaves out: `wrong` reweighs A <= 0 alone, `correct` A > 0 alone.
    """

    leaf: str = "embeddings"
    leaf_shift: str = "released"
    rollout_symmetry: str = "wrong"
    mean: float = 1.0
    spread: float = 0.5
    least: float = 0.5
    most: float = 5.0
    max_tokens_per_forward: int = 2048
    gives: ClassVar[Literal["weights"]] = "weights"

    def __post_init__(self) -> None:
        for key, allowed in (("leaf", LEAVES), ("leaf_shift", (*SHIFTS,)), ("rollout_symmetry", SYMMETRIES)):
            if getattr(self, key) not in allowed:
                raise ConfigError(f"{key} must be one of {', '.join(allowed)}, but is {getattr(self, key)!r}.")
        if not 0 <= self.least <= self.mean <= self.most:
            raise ConfigError(
                f"Weights must be 0 <= least <= mean <= most, but are {self.least}, {self.mean} and {self.most}."
            )

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        batch, advantages = inputs.batch, inputs.known_advantages()
        weights = torch.ones(batch.completion_mask.shape, device=advantages.device)
        excluded = {"wrong": advantages > 0, "correct": advantages <= 0, "both": torch.zeros_like(advantages).bool()}
        index = (batch.has_answer & ~excluded[self.rollout_symmetry]).nonzero()[:, 0]
        if len(index):
            weights[index] = self.standardised(self.saliency(inputs.rows(index)), batch.completion_mask[index])
        behind = batch.has_answer[:, None] & ~(batch.reasoning_mask | batch.answer_mask)
        return torch.where(batch.answer_mask, self.most, torch.where(behind, self.mean, weights))

    def standardised(self, saliency: Tensor, mask: Tensor) -> Tensor:
        """Weights (B, T) from saliency (B, T): before the answer and the marker are set."""
        logs = (saliency + TINY).log()
        count = mask.sum(dim=1, keepdim=True)
        away = torch.where(mask, logs - torch.where(mask, logs, 0.0).sum(dim=1, keepdim=True) / count, 0.0)
        variance = away.square().sum(dim=1, keepdim=True) / count
        return (self.mean + self.spread * away / (variance + TINY).sqrt()).clamp(self.least, self.most)

    def saliency(self, inputs: CreditInputs) -> Tensor:
        """|g_t * e_t|_2 (B, T) in nats, 0 outside the completion; every completion needs an answer."""
        batch = inputs.batch
        found = torch.zeros(batch.completion_mask.shape, device=batch.input_ids.device)
        for rows, scores, leaf in self._passes(inputs):
            assert scores.forward is not None  # it was just made, or kept
            some = batch.rows(rows)
            with torch.enable_grad():
                spoken = scores.logprobs[some.marker_mask | some.answer_mask].sum()
            (gradient,) = torch.autograd.grad(spoken, leaf, retain_graph=True)
            norms = (gradient.float() * leaf.detach().float()).norm(dim=-1).reshape(-1)
            row, token = some.completion_mask.nonzero(as_tuple=True)
            position = some.prompt_lengths[row] + token + SHIFTS[self.leaf_shift]
            found[rows[row], token] = scores.forward.packing.at(norms, row, position)
        return found

    def _passes(self, inputs: CreditInputs) -> Iterator[tuple[Tensor, Scores, Tensor]]:
        """Some rows, their scores with a graph, and the leaf (N, H) in it; the update's own where embeddings are asked for."""
        batch, kept = inputs.batch, inputs.scores.forward
        if self.leaf == "embeddings" and kept is not None and kept.embeddings.requires_grad:
            yield torch.arange(len(batch), device=batch.input_ids.device), inputs.scores, kept.embeddings
            return
        for part in chunks((batch.prompt_lengths + batch.completion_lengths).tolist(), self.max_tokens_per_forward):
            rows = torch.tensor(part, device=batch.input_ids.device)
            with torch.enable_grad(), _layer_output(inputs.model, self.leaf) as seen:
                scores = score_completions(inputs.model, batch.rows(rows), temperature=inputs.temperature, leaf=True)
            assert scores.forward is not None
            yield rows, scores, seen[0] if seen else scores.forward.embeddings


@contextmanager
def _layer_output(model: PreTrainedModel, leaf: str) -> Iterator[list[Tensor]]:
    """What the layer of that name gives in a forward of the block; nothing for the embeddings.

    Raises DataError for a model whose layers are not a list of its decoder's.
    """
    seen: list[Tensor] = []
    if leaf == "embeddings":
        yield seen
        return
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise DataError(
            f"The model's decoder must have its layers in a list, but has none: set leaf=embeddings, not {leaf}."
        )
    # hidden_states[k] of transformers is what layer k - 1 gives: [1], [L // 2] and [L - 1] of the released code.
    number = {"first": 1, "middle": max(1, len(layers) // 2), "last": max(1, len(layers) - 1)}[leaf]

    def note(_: Any, __: Any, output: Tensor | tuple[Tensor, ...]) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    handle = layers[number - 1].register_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()
