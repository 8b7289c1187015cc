"""Where the tokens of a completion end in its text."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_AT_ONCE, _OVERLAP = 32, 8  # tokens that are decoded with what comes before them, and how much of that


def token_ends(completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Of each token the character of the decoded text behind it, special tokens left out, (T,): token t holds ends[t-1]:ends[t].

    They are the tokenizer's own offsets where it reads the text as these tokens again. A model may write it in others: then
    they are found by decoding, from a few tokens before, since a tokenizer may decode a start otherwise.
    """
    ids = list(completion_ids)
    text, special = _decoded(ids, tokenizer), set(tokenizer.all_special_ids)
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if read.input_ids == [token for token in ids if token not in special]:
        offsets, ends, end = iter(read.offset_mapping), [], 0
        for token in ids:
            end = end if token in special else next(offsets)[1]
            ends.append(end)
        return ends
    ends = []
    for first in range(0, len(ids), _AT_ONCE):
        start, known = max(0, first - _OVERLAP), ends[-1] if ends else 0
        before = len(_decoded(ids[start:first], tokenizer))
        for behind in range(first + 1, min(first + _AT_ONCE, len(ids)) + 1):
            ends.append(known + len(_decoded(ids[start:behind], tokenizer)) - before)
    return ends


def _decoded(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Without the half of a character at its end."""
    return str(tokenizer.decode(ids, skip_special_tokens=True)).rstrip("\ufffd")
