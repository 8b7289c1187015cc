"""OAR-P: how far the outcome moves when a token is changed (docs/METHOD.md §4, §9): exact, windowed or budgeted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad

from oar.common.errors import ConfigError
from oar.method.forward.logprobs import logits_of
from oar.method.importance.base import CreditInputs, chunks
from oar.method.importance.clean import CleanPass, clean_passes
from oar.method.importance.counterfactual import recompute
from oar.method.importance.gradient import GradientNormImportance
from oar.method.importance.recomputed_attention import CleanKeys, Recomputation
from oar.method.importance.replacements import mean_embedding, replacement_ids
from oar.method.importance.routes import strongest_routes
from oar.names import COUNTERFACTUALS, DRAWN


@dataclass(frozen=True, slots=True)
class PerturbationImportance:
    """I_t = divergence(P, P^(t)), clipped at 0; in P^(t) reasoning token t is changed, everything else stays.

    counterfactual: what the token is changed to: `pad` (the paper), `text` (a token that the configuration names),
    `mean_embedding` (the mean of the vocabulary's), `random_token`, `resampled` (drawn from the policy at that position; the
    same token again moves nothing), or `knockout` (the token stays, but no later position attends to it).
    draws: of a random counterfactual, over which the divergence is averaged.
    window: None recomputes all that comes after the token, which is exact. A number w recomputes only the token, the w
    tokens after it and everything from the marker on; the tokens between keep their clean keys and values. The cost then
    is linear in the length of the completion instead of quadratic.
    routes: so many further tokens between window and marker are recomputed, those through which the change reaches the
    outcome most strongly (routes.py): token for token they tell far more than a window.
    budget: None runs a counterfactual for every token. A number runs at most so many per completion, those with the
    largest squared gradient norm; the others get that norm, scaled to the measured importance (0: the norm alone; at or
    above T: every token).
    max_tokens_per_forward bounds the memory: recomputed tokens in one forward.
    """

    counterfactual: str = "pad"
    draws: int = 1
    window: int | None = None
    routes: int = 0
    budget: int | None = None
    max_tokens_per_forward: int = 2048

    def __post_init__(self) -> None:
        if self.counterfactual not in COUNTERFACTUALS:
            raise ConfigError(
                f"counterfactual must be one of {', '.join(COUNTERFACTUALS)}, but is {self.counterfactual!r}."
            )
        if self.draws < 1 or (self.draws > 1 and self.counterfactual not in DRAWN):
            raise ConfigError(
                f"draws must be 1 or more, and 1 unless counterfactual is one of {', '.join(DRAWN)}, but is {self.draws} "
                f"with {self.counterfactual}."
            )
        for name, value in (("window", self.window), ("budget", self.budget)):
            if value is not None and value < 0:
                raise ConfigError(f"{name} must be 0 or more, or null for no limit, but is {value}.")
        if self.routes < 0 or (self.routes and self.window is None):
            raise ConfigError(
                f"routes must be 0 or more and needs a window (without one all is recomputed), but is {self.routes} with "
                f"window {self.window}."
            )
        if self.max_tokens_per_forward < 1:
            raise ConfigError(f"max_tokens_per_forward must be 1 or more, but is {self.max_tokens_per_forward}.")

    def __call__(self, inputs: CreditInputs) -> Tensor:
        """(B, T) in nats."""
        if self.budget is None:
            return self.measure(inputs, inputs.batch.reasoning_mask).clamp(min=0)
        norms = GradientNormImportance(self.max_tokens_per_forward)(inputs)
        candidates = largest(norms, inputs.batch.reasoning_mask, self.budget)
        return _fill_in(self.measure(inputs, candidates).clamp(min=0), norms, candidates)

    @torch.no_grad()
    def measure(self, inputs: CreditInputs, tokens: Tensor) -> Tensor:
        """(B, T) divergence of the marked reasoning tokens (B, T), negative where the probe's is; 0 elsewhere."""
        importance = torch.zeros(tokens.shape, device=tokens.device)
        model = inputs.outcome_model
        embed = model.get_input_embeddings()
        mean = mean_embedding(model) if self.counterfactual == "mean_embedding" else None
        for clean in clean_passes(inputs, self.max_tokens_per_forward, graph=False):
            shown, keys = clean.shown, CleanKeys(clean.forward)
            row, token = tokens[clean.completions].nonzero(as_tuple=True)
            replaced = torch.stack(
                [replacement_ids(self.counterfactual, inputs, clean, row, token, draw) for draw in range(self.draws)]
            )
            of, by = self._changes(replaced, shown.input_ids[row, shown.reasoning_positions[row, token]])
            row, token = row[of], token[of]
            for some in self._chunks(inputs, clean, row, token):
                rows = row[some.index]
                unseen = some.positions[:, 0] if self.counterfactual == "knockout" else None
                # Where a read position stands among the recomputed ones: all are, from the marker on.
                found = (some.positions[:, None] == shown.read_positions[rows][:, :, None]) & some.valid[:, None]
                read = found.int().argmax(dim=2)
                ids = shown.input_ids[rows[:, None], some.positions.clamp(max=shown.input_ids.shape[1] - 1)]
                ids[:, 0] = by[some.index]
                embeddings = embed(ids)
                if mean is not None:
                    embeddings[:, 0] = mean
                job = Recomputation(some.rows, embeddings, some.positions, some.valid, read, unseen)
                with recompute(model, keys, job) as hidden:
                    logits = logits_of(model, hidden)
                changed = inputs.probe.outcome(logits, shown.read_mask[rows], shown.read_ids[rows])
                moved = inputs.probe.divergence(clean.outcome[rows], changed)
                # A token's draws may share a chunk: they add up.
                at = clean.completions[rows], token[some.index]
                importance.index_put_(at, (moved / self.draws).to(importance.dtype), accumulate=True)
        return importance

    def _changes(self, replaced: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Which of N tokens each counterfactual changes, ascending, and to what, both (M,); replaced (draws, N), own (N,).

        A draw from the policy that is the token itself moves nothing and is not run: the surer the policy, the fewer are.
        """
        if self.counterfactual != "resampled":
            return torch.arange(len(own), device=own.device).repeat_interleave(self.draws), replaced.T.flatten()
        of, draw = (replaced != own).T.nonzero(as_tuple=True)
        return of, replaced[draw, of]

    def _chunks(self, inputs: CreditInputs, clean: CleanPass, row: Tensor, token: Tensor) -> Iterator["_Chunk"]:
        """Counterfactuals (row, token) in groups of at most `max_tokens_per_forward` recomputed tokens.

        Each recomputes a head (the token and its window), its routes, and a tail (all from the marker on), in this order.
        """
        shown, standing = clean.shown, clean.shown.reasoning_positions
        lengths = shown.lengths[row]
        # The last token before the tail predicts the marker's first token; a probe may read there.
        reasoning_end = standing[:, 0] + inputs.batch.reasoning_mask[clean.completions].sum(dim=1)
        tails = torch.minimum(reasoning_end, _first_read(shown.read_positions, shown.read_mask))
        until = tails[:, None] if self.window is None else torch.minimum(standing + 1 + self.window, tails[:, None])
        until = torch.maximum(until, standing + 1)
        tail = torch.maximum(tails[:, None], until)[row, token]
        routes = row.new_zeros(len(row), 0)
        if self.routes:
            found = strongest_routes(clean, self.routes, until, tails, self.max_tokens_per_forward)
            routes = found[row, token]
        masked, head = standing[row, token], (until - standing)[row, token]
        through = (routes < tail[:, None]).sum(dim=1)
        sizes = head + through + lengths - tail
        routes = pad(routes, (0, 1))  # a column to point at where there is no route
        row_of, size_of = torch.stack([row, sizes]).tolist()  # all at once: each read of a GPU's numbers waits for it
        # Of like lengths little is padded; of like completions clean keys can be shared.
        forwards = (
            chunks(size_of, self.max_tokens_per_forward)
            if self.window is None
            else _by_completion(row_of, size_of, self.max_tokens_per_forward)
        )
        for some in forwards:
            index = torch.tensor(some, device=row.device)
            step = torch.arange(max(size_of[one] for one in some), device=row.device)
            route = step - head[index, None]
            after = route - through[index, None]
            positions = torch.where(
                after < 0, routes[index].gather(1, route.clamp(0, self.routes)), tail[index, None] + after
            )
            positions = torch.where(route < 0, masked[index, None] + step, positions)
            yield _Chunk(index, [row_of[one] for one in some], positions, step < sizes[index, None])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """index (N,) of counterfactuals; rows: their N completions; positions and valid (N, W): what each of them recomputes."""

    index: Tensor
    rows: Sequence[int]
    positions: Tensor
    valid: Tensor


def _by_completion(rows: Sequence[int], sizes: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Counterfactuals of completions `rows`, ascending, in groups of at most `max_tokens` recomputed tokens.

    A group holds whole completions where they fit: then their clean keys can be read in place by all of them.
    """
    limit = max(1, max_tokens // max(sizes, default=1))
    group: list[int] = []
    for _, of_one in groupby(range(len(rows)), key=rows.__getitem__):
        own = list(of_one)
        for start in range(0, len(own), limit):
            some = own[start : start + limit]
            if len(group) + len(some) > limit:
                yield group
                group = []
            group += some
    if group:
        yield group


def largest(signal: Tensor, mask: Tensor, count: int) -> Tensor:
    """(B, T) marks of the `count` largest entries of each row of `signal` (B, T) under `mask`, all of them if fewer."""
    ranks = signal.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (ranks < count) & mask


def _fill_in(measured: Tensor, norms: Tensor, candidates: Tensor) -> Tensor:
    """Measured importance (B, T) of the candidates; elsewhere the norms (B, T) times their typical ratio to the measured.

    The typical ratio is the geometric mean over the candidates: importance spans orders of magnitude within a completion,
    and a ratio of sums, which the largest token decides, lifts or sinks all the others past the measured ones. Where no candidate
    moved anything the others count as nothing too: their bare norms would get all the credit. Without candidates all are norms.
    """
    both = candidates & (measured > 0) & (norms > 0)
    ratios = torch.where(both, measured, 1.0).log() - torch.where(both, norms, 1.0).log()
    typical = (ratios.sum(dim=1, keepdim=True) / both.sum(dim=1, keepdim=True).clamp(min=1)).exp()
    moved = both.any(dim=1, keepdim=True) | ~candidates.any(dim=1, keepdim=True)
    return torch.where(candidates, measured, norms * typical * moved)


def _first_read(read_positions: Tensor, read_mask: Tensor) -> Tensor:
    """(R,) the first position that is read."""
    return read_positions.masked_fill(~read_mask, torch.iinfo(read_positions.dtype).max).amin(dim=1)
