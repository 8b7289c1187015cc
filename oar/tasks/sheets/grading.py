"""What a written sheet earns, and the ground truth of its tokens."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from oar.tasks.problem import Problem
from oar.tasks.sheets.generator import ALL, EVERY, ONE, SHEETS
from oar.tasks.sheets.language import KEYS, MARKER
from oar.tasks.words.reading import read


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
        if word in KEYS and following.isdigit():
            places.setdefault(word, place + 1)
    return places


def marks(
    problem: Problem, completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase
) -> dict[str, list[bool] | list[int]]:
    """By name a value per completion token (T,), of any tokenizer.

    causal: the digits that the reward counts. error: the first wrong one of these, or, where none is wrong, these. right, or
    with a reward for all of them all_right: the id of the token that would be right in the place of such a digit, 0 elsewhere.
    """
    reading, counted, gold = read(completion_ids, tokenizer), problem.columns[SHEETS], _entries(problem.solution)
    words, places = reading.pieces, digit_places(reading.pieces)
    keys = [counted["asked"]] if counted["reward"] == ONE else list(gold)
    entries = {reading.tokens[places[key]]: (words[places[key]], gold[key]) for key in keys if key in places}
    wrong = [token for token, (digit, right) in sorted(entries.items()) if digit != right]
    errors = wrong[:1] or list(entries)
    ids = [0] * reading.length
    for token, (digit, right) in entries.items():
        # A vocabulary may have the blank before the digit in the same token.
        said = str(tokenizer.convert_ids_to_tokens(int(completion_ids[token])))
        found = tokenizer.convert_tokens_to_ids(said.replace(digit, right))
        assert isinstance(found, int)  # of one token; of a list it would be a list
        ids[token] = found
    return {
        "causal": [token in entries for token in range(reading.length)],
        "error": [token in errors for token in range(reading.length)],
        "all_right" if counted["reward"] == ALL else "right": ids,
    }


def _entries(written: str) -> dict[str, str]:
    """The digit of each key, in order; a key without one is left out."""
    words = written.split()
    return dict(zip(words[::2], words[1::2], strict=False))
