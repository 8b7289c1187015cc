"""A completion taken apart into words, signs and digits, each in the token that holds it, whatever the tokenizer."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase

from oar.tasks.offsets import token_ends
from oar.tasks.words import language

_PIECE = re.compile(rf"{language.MARKER}|[^\W\d_]+|\S")


@dataclass(frozen=True, slots=True)
class Reading:
    """pieces: words, signs and digits in their order; tokens: of each the index of its token; length: how many tokens."""

    pieces: Sequence[str]
    tokens: Sequence[int]
    length: int


def read(completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Reading:
    """The pieces of a completion.

    Of the embedded tokenizer they are its tokens, the end token among them. Of any other they are found in the text, and mapped
    to tokens by character offsets: blanks and special tokens are no pieces.
    """
    ids = list(completion_ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and isinstance(backend.model, WordLevel):
        return Reading(tokenizer.convert_ids_to_tokens(ids), range(len(ids)), len(ids))
    found = list(_PIECE.finditer(str(tokenizer.decode(ids, skip_special_tokens=True))))
    ends = token_ends(ids, tokenizer)
    return Reading([piece[0] for piece in found], [bisect_right(ends, piece.start()) for piece in found], len(ids))
