"""What a written sheet earns, and the ground truth of its tokens."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from oar.tasks.offsets import token_ends
from oar.tasks.problem import Problem
from oar.tasks.sheets.generator import ALL, EVERY, ONE, SHEETS
from oar.tasks.sheets.language import KEYS, MARKER


def reward(completion: str, final_answer: str | None, solution: str, counted: Mapping[str, Any]) -> float:
    """0 to 1: the share of the entries that count which are right; with `all`, 1 where none is wrong, else 0.

    An entry is right where its first digit in the completion is, and where the answer repeats it, there as well. A completion
    without an answer earns nothing. `solution`, `counted`: of the problem.
    """
    if final_answer is None:
        return 0.0
    gold, words = _entries(solution), completion.split()
    places = digit_places(words)
    right = {key: key in places and words[places[key]] == digit for key, digit in gold.items()}
    asked = counted["asked"]
    if counted["answer"] == EVERY:
        answered = _entries(final_answer)
        right = {key: right[key] and answered.get(key) == digit for key, digit in gold.items()}
    elif counted["answer"] == ONE:
        right[asked] = right[asked] and final_answer == gold[asked]
    if counted["reward"] == ONE:
        return float(right[asked])
    share = sum(right.values()) / len(right)
    return float(share == 1) if counted["reward"] == ALL else share


def digit_places(words: Sequence[str]) -> dict[str, int]:
    """Where each key's digit stands before the last marker: the number that follows the key's first entry."""
    end = len(words) - 1 - words[::-1].index(MARKER) if MARKER in words else len(words)
    places: dict[str, int] = {}
    for place, (word, following) in enumerate(pairwise(words[:end])):
        if word in KEYS and following.isascii() and following.isdigit():
            places.setdefault(word, place + 1)
    return places


def marks(
    problem: Problem, completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[bool] | list[int]]:
    """By name a value per completion token (T,), of any tokenizer.

    causal: the digits that the reward counts. error: the first wrong one of these, or, where none is wrong, these. right, or
    with a reward for all of them all_right: the id of the token that would be right in the place of such a digit, 0 elsewhere.
    """
    counted, gold = problem.columns[SHEETS], _entries(problem.solution)
    # Words as the reward reads them: of `7,` and `77` no token alone decides.
    found = list(re.finditer(r"\S+", str(tokenizer.decode(list(completion_ids), skip_special_tokens=True))))
    words, ends = [word[0] for word in found], token_ends(completion_ids, tokenizer)
    keys = [counted["asked"]] if counted["reward"] == ONE else list(gold)
    digits = {key: found[place] for key, place in digit_places(words).items() if key in keys and len(words[place]) == 1}
    entries = {bisect_right(ends, word.start()): (word[0], gold[key]) for key, word in digits.items()}
    wrong = [token for token, (digit, right) in sorted(entries.items()) if digit != right]
    errors = wrong[:1] or list(entries)
    ids = [0] * len(ends)
    for token, (digit, right) in entries.items():
        # A vocabulary may have the blank before the digit in the same token.
        said = str(tokenizer.convert_ids_to_tokens(int(completion_ids[token])))
        instead = tokenizer.convert_tokens_to_ids(said.replace(digit, right))
        assert isinstance(instead, int)  # of one token; of a list it would be a list
        ids[token] = instead
    return {
        "causal": [token in entries for token in range(len(ends))],
        "error": [token in errors for token in range(len(ends))],
        "all_right" if counted["reward"] == ALL else "right": ids,
    }


def _entries(written: str) -> dict[str, str]:
    """The digit of each key, in order; a key without one is left out."""
    words = written.split()
    return dict(zip(words[::2], words[1::2], strict=False))
