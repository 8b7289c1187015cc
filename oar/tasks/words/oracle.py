"""Ground truth for attribution: which tokens carry the computation, and where a wrong completion first goes wrong."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from oar.tasks.problem import Problem
from oar.tasks.words import language
from oar.tasks.words.generator import read_solution
from oar.tasks.words.reading import read

# A completion is read as one letter per piece (reading.py), so that positions in the letters are those of pieces.
_NUMBER, _OPERATOR, _EQUALS, _MARKER, _WORD = "n", "o", "e", "m", "w"
_START_NUMBER = re.compile(r"n+")
_EQUATION = re.compile(r"(?P<before>n+)(?P<operator>o)(?P<operand>n+)(?:e(?P<after>n+))?")


# What a token is in a completion. The first five carry the computation; words name no operation and no number.
START, BEFORE, OPERATOR, OPERAND, AFTER = "start", "before", "operator", "operand", "after"
EQUALS, NUMBER, WORD, REST, BLANK = "equals", "number", "word", "rest", "blank"
CAUSAL_ROLES = (START, BEFORE, OPERATOR, OPERAND, AFTER)


def token_roles(completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What each token is, (T,): the start number; of an equation `before operator operand equals after`; or beside them.

    A `number` is one that belongs to neither, a `word` is everything else in the reasoning, punctuation included, but for a
    `blank`, which is a token without anything to read; all from the last `####` on is `rest`. A token that holds several is
    what the computation has of it, else the first of them.
    """
    reading = read(completion_ids, tokenizer)
    letters = _letters(reading.pieces)
    reasoning = letters[: _reasoning_length(letters)]
    equations = list(_EQUATION.finditer(reasoning))
    roles = [{_NUMBER: NUMBER, _EQUALS: EQUALS}.get(letter, WORD) for letter in reasoning]
    spans = [(role, equation.span(role)) for equation in equations for role in equation.groupdict() if equation[role]]
    spans += [(START, start.span()) for start in _start_number(reasoning, equations)]
    for role, (first, end) in spans:
        roles[first:end] = [role] * (end - first)
    roles += [REST] * (len(letters) - len(reasoning))
    held: dict[int, str] = {}
    for token, role in zip(reading.tokens, roles, strict=True):
        if token not in held or (role in CAUSAL_ROLES and held[token] not in CAUSAL_ROLES):
            held[token] = role
    answer = reading.tokens[len(reasoning)] if len(reasoning) < len(letters) else reading.length
    return [held.get(token, BLANK if token < answer else REST) for token in range(reading.length)]


def causal_mask(completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """True for the digits and operators of every written equation and for the start number; shape (T,).

    Only reasoning counts: nothing from the last `####` on is marked.
    """
    return [role in CAUSAL_ROLES for role in token_roles(completion_ids, tokenizer)]


def written_mask(completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """True for all of `causal_mask` and for every `=` and full stop of the reasoning; shape (T,).

    Those signs carry no number, but decide whether a result is written out at all.
    """
    reading = read(completion_ids, tokenizer)
    signs = {
        token
        for piece, token in zip(reading.pieces, reading.tokens, strict=True)
        if piece in (language.EQUALS, language.STOP)
    }
    roles = token_roles(completion_ids, tokenizer)
    return [role in CAUSAL_ROLES or (role != REST and token in signs) for token, role in enumerate(roles)]


def first_error(problem: Problem, completion_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Index of the first token that departs from `problem.solution`, found by replaying the written equations.

    In order: the start number, then each equation (state, operator, operand, result) against the operation it stands
    for, then the answer. A number that ends too early is wrong at the token after it. None where nothing departs, and
    where the error is something missing and has no token of its own: equations left out at the end, no `####`.
    DataError for a problem whose solution is no computation.
    """
    reading = read(completion_ids, tokenizer)
    wrong = _first_wrong(problem, reading.pieces)
    return None if wrong is None else reading.tokens[wrong]


def _first_wrong(problem: Problem, pieces: Sequence[str]) -> int | None:
    """The same as the index of a piece."""
    start_number, operations = read_solution(problem.solution)
    letters = _letters(pieces)
    end = _reasoning_length(letters)
    equations = list(_EQUATION.finditer(letters[:end]))
    claims = [(start.start(), str(start_number)) for start in _start_number(letters[:end], equations)]
    for equation, operation in zip(equations, operations, strict=False):
        claims.append((equation.start("before"), str(operation.before)))
        claims.append((equation.start("operator"), operation.operator))
        claims.append((equation.start("operand"), str(operation.operand)))
        if equation["after"]:
            claims.append((equation.start("after"), str(operation.after)))
    for position, expected in claims:
        if (wrong := _departure(pieces, letters, position, expected)) is not None:
            return wrong
    if len(equations) > len(operations):
        return equations[len(operations)].start()
    if len(equations) < len(operations) or end == len(letters):
        return None
    return _departure(pieces, letters, end + 1, problem.answer)


def _departure(pieces: Sequence[str], letters: str, position: int, expected: str) -> int | None:
    """The first piece from `position` on that is not the expected number or operator, one piece per character."""
    for offset, character in enumerate(expected):
        if position + offset >= len(pieces) or pieces[position + offset] != character:
            return min(position + offset, len(pieces) - 1)  # cut off: the last piece there is
    after = position + len(expected)
    too_long = expected.isdigit() and letters[after : after + 1] == _NUMBER
    return after if too_long else None


def _start_number(reasoning: str, equations: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """The first number before the first equation: a list of none or one."""
    end = equations[0].start() if equations else len(reasoning)
    found = _START_NUMBER.search(reasoning, 0, end)
    return [found] if found else []


def _letters(pieces: Sequence[str]) -> str:
    return "".join(map(_letter, pieces))


def _letter(piece: str) -> str:
    if piece.isdigit():
        return _NUMBER
    if piece in language.OPERATORS:
        return _OPERATOR
    return {language.EQUALS: _EQUALS, language.MARKER: _MARKER}.get(piece, _WORD)


def _reasoning_length(letters: str) -> int:
    """Pieces before the last marker; all of them where there is none."""
    marker = letters.rfind(_MARKER)
    return len(letters) if marker < 0 else marker
