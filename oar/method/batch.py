"""The tensors of one batch of completions, which every later stage reads.

A row of `input_ids` is the prompt, the completion directly behind it, and padding only at the right. Causal attention
never looks right, so no attention mask is needed and padding cannot matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oar.method.segments import Segments


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """B completions; L is the longest prompt + completion, T the longest completion.

    input_ids (B, L), prompt_lengths (B,), completion_lengths (B,), completion_ids (B, T), sampler_logprobs (B, T);
    masks (B, T): completion_mask, and of a completion with an answer span reasoning_mask, marker_mask, answer_mask
    (all False where there is none: docs/METHOD.md §2, fallback). gold_ids and gold_mask (B, K): the tokens of the right answer as
    it would stand behind the marker; reference_ids and reference_mask (B, S): those of a reference response; K and S are 0 where
    nobody has said them. context_ids (B, C), context_lengths (B,): another
    prompt, with a privileged look, under which the same completion can be scored; 0 long where a completion has none, and C is
    0 where nobody has made any.
    """

    input_ids: Tensor
    prompt_lengths: Tensor
    completion_lengths: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    reasoning_mask: Tensor
    marker_mask: Tensor
    answer_mask: Tensor
    sampler_logprobs: Tensor
    gold_ids: Tensor
    gold_mask: Tensor
    reference_ids: Tensor
    reference_mask: Tensor
    context_ids: Tensor
    context_lengths: Tensor
    pad_id: int

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @property
    def has_answer(self) -> Tensor:
        """(B,) whether the completion has an answer span."""
        return self.answer_mask.any(dim=1)

    @property
    def has_segments(self) -> Tensor:
        """(B,) whether reasoning is known as such: there is an answer span, or the outcome needs none."""
        return self.has_answer | self.reasoning_mask.any(dim=1)

    @property
    def has_context(self) -> Tensor:
        """(B,) whether there is a privileged prompt for the completion."""
        return self.context_lengths > 0

    def in_context(self) -> "CompletionBatch":
        """The same completions behind their privileged prompts, which all of them must have."""
        width = int((self.context_lengths + self.completion_lengths).max())
        place = torch.arange(width, device=self.input_ids.device).expand(len(self), width)
        behind = place - self.context_lengths[:, None]
        context = self.context_ids.gather(1, place.clamp(max=self.context_ids.shape[1] - 1))
        completion = self.completion_ids.gather(1, behind.clamp(0, self.completion_ids.shape[1] - 1))
        ids = torch.where(behind < 0, context, completion)
        ids = ids.masked_fill(behind >= self.completion_lengths[:, None], self.pad_id)
        return replace(self, input_ids=ids, prompt_lengths=self.context_lengths)

    def micro_batches(self, index: Tensor, max_tokens: int) -> tuple[Tensor, ...]:
        """`index` (integer positions) in parts of at most `max_tokens` tokens of prompts and completions; one row at least.

        Completions of one prompt stay together as far as they fit, since a forward computes a prompt once. Forwards are packed,
        so rows of a part need not be of like length, and few parts are more than the fewest there can be.
        """
        told = torch.column_stack([self.prompt_lengths, self.completion_lengths, self.input_ids])[index].cpu()
        prompts, completions = told[:, :2].T.tolist()
        own = [length + 1 for length in completions]  # the last token of a prompt stands before each of its completions
        members: dict[int, list[int]] = {}
        for row, number in enumerate(same_beginnings(told[:, 2:], prompts)):
            members.setdefault(number, []).append(row)
        together, tokens = list[list[int]](), list[int]()
        for rows in members.values():
            prompt = prompts[rows[0]] - 1
            for fitting in _first_fit([own[row] for row in rows], max_tokens - prompt):
                together.append([rows[which] for which in fitting])
                tokens.append(prompt + sum(own[row] for row in together[-1]))
        parts = _first_fit(tokens, max_tokens)
        return tuple(index[[row for which in part for row in together[which]]] for part in parts)

    def rows(self, index: Tensor) -> "CompletionBatch":
        """The completions `index` (integer positions or a (B,) mask), padding cut to what they need, T unchanged."""
        longest = int((self.prompt_lengths + self.completion_lengths)[index].max()) if len(index) else 0
        tensors = {name: getattr(self, name)[index] for name in _TENSORS}
        tensors["input_ids"] = tensors["input_ids"][:, :longest]
        return CompletionBatch(**tensors, pad_id=self.pad_id)


_TENSORS = [name for name in CompletionBatch.__slots__ if name != "pad_id"]


def _first_fit(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Which of the sizes go together, so that they sum to `most` at most: the largest first, each to the first that has room."""
    parts: list[list[int]] = []
    room: list[int] = []
    for which in sorted(range(len(sizes)), key=lambda which: -sizes[which]):
        at = next((at for at, left in enumerate(room) if sizes[which] <= left), len(room))
        if at == len(room):
            parts.append([])
            room.append(most)
        parts[at].append(which)
        room[at] -= sizes[which]
    return parts


def same_beginnings(ids: Tensor, lengths: Sequence[int]) -> list[int]:
    """A number for each row of ids (R, L) on the CPU: the same for rows whose first lengths[r] tokens are the same."""
    numbers = dict[bytes, int]()
    beginnings = (row[:length].tobytes() for row, length in zip(ids.numpy(), lengths, strict=True))
    return [numbers.setdefault(beginning, len(numbers)) for beginning in beginnings]


def collate(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    sampler_logprobs: Sequence[Sequence[float]],
    segments: Sequence[Segments | None],
    golds: Sequence[Sequence[int]] = (),
    contexts: Sequence[Sequence[int]] | None = None,
    *,
    references: Sequence[Sequence[int]] = (),
    pad_id: int,
    device: torch.device | str = "cpu",
) -> CompletionBatch:
    """Token ids and borders, one entry per completion, as one batch of tensors.

    `golds`, `references`: right answers and reference responses, of all or of none. `contexts`: privileged prompts, empty for
    a completion that has none; None where nobody has made any.
    """
    prompt_lengths = torch.tensor([len(ids) for ids in prompts])
    completion_lengths = torch.tensor([len(ids) for ids in completions])
    rows, width = len(prompts), int(completion_lengths.max())
    input_ids = torch.full((rows, int((prompt_lengths + completion_lengths).max())), pad_id)
    completion_ids = torch.full((rows, width), pad_id)
    logprobs = torch.zeros(rows, width)
    borders = torch.zeros(rows, 3, dtype=torch.long)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        input_ids[row, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        completion_ids[row, : len(completion)] = torch.tensor(completion)
        logprobs[row, : len(completion)] = torch.tensor(sampler_logprobs[row])
        found = segments[row]
        if found is not None:
            borders[row] = torch.tensor([found.reasoning_end, found.answer_start, found.answer_end])
    gold_ids, gold_mask = _padded(golds or [[]] * rows, pad_id)
    reference_ids, reference_mask = _padded(references or [[]] * rows, pad_id)
    context_ids, context_mask = _padded([[]] * rows if contexts is None else contexts, pad_id, contexts is not None)
    position = torch.arange(width)[None, :]
    reasoning_end, answer_start, answer_end = borders[:, :, None].unbind(1)
    batch = CompletionBatch(
        input_ids=input_ids,
        prompt_lengths=prompt_lengths,
        completion_lengths=completion_lengths,
        completion_ids=completion_ids,
        completion_mask=position < completion_lengths[:, None],
        reasoning_mask=position < reasoning_end,
        marker_mask=(position >= reasoning_end) & (position < answer_start),
        answer_mask=(position >= answer_start) & (position < answer_end),
        sampler_logprobs=logprobs,
        gold_ids=gold_ids,
        gold_mask=gold_mask,
        reference_ids=reference_ids,
        reference_mask=reference_mask,
        context_ids=context_ids,
        context_lengths=context_mask.sum(dim=1),
        pad_id=pad_id,
    )
    return CompletionBatch(**{name: getattr(batch, name).to(device) for name in _TENSORS}, pad_id=pad_id)


def _padded(rows: Sequence[Sequence[int]], pad_id: int, least: int = 0) -> tuple[Tensor, Tensor]:
    """Ids (B, K), padded at the right, and which of them are no padding; K is `least` or more."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(max(least, int(lengths.max())))[None, :] < lengths[:, None]
    ids = torch.full(mask.shape, pad_id)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids, mask
