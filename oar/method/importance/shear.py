"""SHEAR: how far hidden states lie from those of the group's completions of the other outcome (arXiv 2604.23318)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.forward.logprobs import run_completions
from oar.method.importance.base import CreditInputs, chunks

DISTANCES = ("sinkhorn", "chamfer", "mmd")
NORMALISERS = ("global_norm", "per_rollout_mean1")
BLOCK = 2**24  # costs that are held at a time: pairs of spans times pairs of tokens


@dataclass(frozen=True, slots=True)
class ShearWeights:
    """w_t = max over the spans k that hold token t of d_k, d_k the least distance of span k to any span of the other outcome.

    Spans are `window` tokens long and begin every `stride` tokens, as many as it takes to cover the completion; the tokens of a
    span are points of equal mass, their last hidden states. `sinkhorn`: transport cost <P, C> of the entropic plan P, C the
    Euclidean distance, its epsilon a share of the mean cost, `iterations` of both updates. `chamfer`: half the sum of the mean
    distances of each point to the nearest one of the other span. `mmd`: s x MMD, the maximum mean discrepancy of the two spans
    under the kernel exp(-|a - b|^2 / (2 s^2)); s, one number a group, is the mean distance of a state of a right completion to
    one of a wrong one. The factor s keeps the unit of states, which `normalise` divides by: with a large s it is the distance
    of the spans' means. Paper: an MMD with this kernel; s, the factor and the root are our reading.
    `normalise`: `global_norm` divides by the mean norm of the group's states (paper), `per_rollout_mean1` by the completion's
    own mean, which keeps the mass. `exclude_answer`: spans end where the marker begins; what follows weighs 1.
    Right and wrong is the sign of the advantage; where a group lacks one of the two its completions weigh 1.
    """

    window: int = 100
    stride: int = 25
    distance: str = "sinkhorn"
    epsilon: float = 0.05
    iterations: int = 50
    normalise: str = "global_norm"
    exclude_answer: bool = False
    max_tokens_per_forward: int = 2048
    gives: ClassVar[Literal["weights"]] = "weights"
    needs_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.stride <= self.window:
            raise ConfigError(
                f"stride must be at least 1 and at most window, but they are {self.stride} and {self.window}."
            )
        if self.epsilon <= 0 or self.iterations < 1:
            raise ConfigError(
                f"epsilon must be above 0 and iterations 1 or more, but they are {self.epsilon} and {self.iterations}."
            )
        for key, allowed in (("distance", DISTANCES), ("normalise", NORMALISERS)):
            if getattr(self, key) not in allowed:
                raise ConfigError(f"{key} must be one of {', '.join(allowed)}, but is {getattr(self, key)!r}.")

    @torch.no_grad()
    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T)."""
        groups, signs = inputs.known_groups(), inputs.known_advantages().sign()
        weights = torch.ones(inputs.batch.completion_mask.shape, device=signs.device)
        for group in groups.unique().tolist():
            index = (groups == group).nonzero()[:, 0]
            if {-1.0, 1.0} <= set(signs[index].tolist()):
                self._weigh(inputs.rows(index), index, weights)
        return weights

    def _weigh(self, inputs: CreditInputs, index: Tensor, weights: Tensor) -> None:
        """Fill in the rows `index` of `weights` (B, T): of `inputs`, the completions of one prompt, not all of one outcome."""
        batch, signs = inputs.batch, inputs.known_advantages().sign().tolist()
        states = self._states(inputs)
        norm = torch.cat(states).norm(dim=1).mean()
        counts = batch.completion_lengths
        if self.exclude_answer:
            counts = torch.where(batch.has_answer, batch.reasoning_mask.sum(dim=1), counts)
        compared = [own[:count] for own, count in zip(states, counts.tolist(), strict=True)]
        pairs = [
            (one, other)
            for one, other in product(range(len(compared)), repeat=2)
            if signs[one] > 0 > signs[other] and len(compared[one]) and len(compared[other])
        ]
        apart = self.span_distances
        if self.distance == "mmd":
            apart = partial(self.mmd_distances, width=_mean_distance(compared, pairs))
        between = {(one, other): apart(compared[one], compared[other]) for one, other in pairs}
        for row, own in enumerate(compared):
            least = [found.amin(dim=1) for (one, _), found in between.items() if one == row]
            least += [found.amin(dim=0) for (_, other), found in between.items() if other == row]
            if not least:  # it has no opponent
                continue
            places, _ = _spans(len(own), self.window, self.stride, own.device)
            nearest = torch.stack(least).amin(dim=0)[:, None].expand_as(places)
            distance = own.new_zeros(len(own)).scatter_reduce(0, places.flatten(), nearest.flatten(), "amax")
            scale = norm if self.normalise == "global_norm" else distance.mean()
            weights[index[row], : len(own)] = torch.where(scale > 0, distance / scale, 1.0)

    def _states(self, inputs: CreditInputs) -> list[Tensor]:
        """(T_i, H) in float32: the last hidden states, after the final norm, of each completion's own tokens."""
        batch = inputs.batch
        found: list[Tensor] = [torch.empty(0)] * len(batch)
        lengths = (batch.prompt_lengths + batch.completion_lengths).tolist()
        counts = batch.completion_lengths.tolist()
        for rows in chunks(lengths, self.max_tokens_per_forward):
            forward = run_completions(inputs.model, batch.rows(torch.tensor(rows, device=batch.input_ids.device)))
            whole = forward.packing.at(forward.hidden, *forward.packing.tokens())
            for row, states in zip(rows, whole.split([lengths[row] for row in rows]), strict=True):
                found[row] = states[-counts[row] :].float()
        return found

    def span_distances(self, one: Tensor, other: Tensor) -> Tensor:
        """(K, L) between the K spans of states (T, H) and the L spans of states (U, H), by `sinkhorn` or `chamfer`."""
        costs = _distances(one, other)
        places, held = _spans(len(one), self.window, self.stride, one.device)
        other_places, other_held = _spans(len(other), self.window, self.stride, one.device)
        found = []
        for some, some_held in _in_blocks(places, held, BLOCK // other_places.numel()):
            blocks = costs[some[:, None, :, None], other_places[None, :, None, :]]  # (k, L, window, window)
            masks = some_held[:, None, :, None], other_held[None, :, None, :]
            found.append(
                self._chamfer(blocks, *masks) if self.distance == "chamfer" else self._sinkhorn(blocks, *masks)
            )
        return torch.cat(found)

    def mmd_distances(self, one: Tensor, other: Tensor, width: Tensor) -> Tensor:
        """The same by `mmd`, `width` () its s: the mean kernel within each span, less twice that between them, is MMD squared."""
        width = width.clamp(min=torch.finfo(width.dtype).tiny ** 0.25)  # 0 where all states are equal
        mine, others = self._shares(one), self._shares(other)
        within, others_within = (
            (shares @ _kernel(states, states, width) * shares).sum(dim=1)
            for shares, states in ((mine, one), (others, other))
        )
        squared = within[:, None] + others_within - 2 * mine @ _kernel(one, other, width) @ others.T
        return width * squared.clamp(min=0).sqrt()

    def _shares(self, states: Tensor) -> Tensor:
        """(K, T): the mass that each span has at each token of states (T, H), so that a product with it is a mean over spans."""
        places, held = _spans(len(states), self.window, self.stride, states.device)
        shares = states.new_zeros(len(places), len(states)).scatter_add(1, places, held.to(states.dtype))
        return shares / held.sum(dim=1, keepdim=True)

    def _chamfer(self, costs: Tensor, held: Tensor, other_held: Tensor) -> Tensor:
        there = costs.masked_fill(~other_held, torch.inf).amin(dim=3, keepdim=True).masked_fill(~held, 0.0)
        back = costs.masked_fill(~held, torch.inf).amin(dim=2, keepdim=True).masked_fill(~other_held, 0.0)
        return (there.sum(dim=(2, 3)) / held.sum(dim=(2, 3)) + back.sum(dim=(2, 3)) / other_held.sum(dim=(2, 3))) / 2

    def _sinkhorn(self, costs: Tensor, held: Tensor, other_held: Tensor) -> Tensor:
        """<P, C> (k, L), P by alternating updates of its two potentials, in logarithms."""
        pairs = held & other_held
        mean = costs.masked_fill(~pairs, 0.0).sum(dim=(2, 3), keepdim=True) / pairs.sum(dim=(2, 3), keepdim=True)
        epsilon = (self.epsilon * mean).clamp(min=torch.finfo(costs.dtype).tiny ** 0.5)
        mass = torch.where(held, -held.sum(dim=2, keepdim=True).log(), -torch.inf)
        other_mass = torch.where(other_held, -other_held.sum(dim=3, keepdim=True).log(), -torch.inf)
        scaled = -costs / epsilon
        column = torch.zeros_like(other_mass)
        for _ in range(self.iterations):
            row = -(scaled + column + other_mass).logsumexp(dim=3, keepdim=True)
            column = -(scaled + row + mass).logsumexp(dim=2, keepdim=True)
        plan = (scaled + row + column + mass + other_mass).exp()
        return (plan * costs).sum(dim=(2, 3))


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """(T, U) between states (T, H) and (U, H)."""
    # By differences: through products of matrices, equal states would be some way apart.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")


def _kernel(one: Tensor, other: Tensor, width: Tensor) -> Tensor:
    return (-((_distances(one, other) / width) ** 2) / 2).exp()


def _mean_distance(states: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> Tensor:
    """() of a state of the one to a state of the other, over all pairs of completions; 0 where there are none."""
    means = [_distances(states[one], states[other]).mean() for one, other in pairs]
    return torch.stack(means).mean() if means else torch.zeros(())


def span_starts(count: int, window: int, stride: int) -> range:
    """Where spans begin: the fewest that cover `count` tokens, one where they are no more than a window."""
    return range(0, count - window + stride, stride) if count > window else range(min(count, 1))


def _spans(count: int, window: int, stride: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions (K, window) of the tokens of each span, the last one repeated, and which of them are there."""
    starts = torch.tensor(span_starts(count, window, stride), device=device)
    places = starts[:, None] + torch.arange(min(window, count), device=device)
    return places.clamp(max=count - 1), places < count


def _in_blocks(places: Tensor, held: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Spans a few at a time, at most `most` positions but one span at least."""
    size = max(1, most // places.shape[1])
    yield from zip(places.split(size), held.split(size), strict=True)
