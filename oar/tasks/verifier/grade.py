"""Does a completion's final answer equal the gold answer?

Numbers, words and structure are compared here; only formulas go to a pool of processes, where math-verify parses them and
sympy compares them (`oar/tasks/verifier/pool.py`). Units are not compared; decimals are exact: 0.33 is not 1/3.
"""

import atexit
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from oar.method.segments import BOX, HASH, Markers, extract_answer, find_answer
from oar.tasks.verifier.pool import VerifierPool
from oar.tasks.verifier.structure import NeedsSymbolsError, PlainOnly, judge
from oar.tasks.verifier.text import MAX_CHARACTERS, same_text

FORMS: Markers = (BOX, HASH)
OUTCOMES = ("plain", "symbols", "no_answer", "too_long", "timeout", "crash")
MAX_WORKERS = 8  # of the shared pool; each takes about 150 MB
Key = tuple[str, str, bool]  # gold answer, answer, whether it counts only to the letter
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One graded completion. `answer` is the one that was found, as written.

    outcome: `plain` (numbers, words, structure, or a procedural problem's scorer), `symbols` (sympy was asked), `no_answer`,
    `too_long`, or why there is no verdict, and so no reward: `timeout`, `crash`. partial: what the scorer said, where one did.
    """

    correct: bool
    answer: str | None
    outcome: str
    partial: float | None = None

    @property
    def score(self) -> float:
        """1 for right and 0 for wrong, where no scorer says otherwise."""
        return float(self.correct) if self.partial is None else self.partial


def verify(gold: str, completion: str, markers: Markers = FORMS, *, bare_number: bool = False) -> bool:
    """True where the final answer of `completion` equals `gold`.

    The answer is the last `\\boxed{}`, else the rest of the line after the last `####` (`markers` changes that), else, with
    `bare_number`, the last number. A completion without an answer is wrong, and so is one whose answer takes more than a
    second to compare. After `####` stands the answer alone, as in GSM8K: a line that ends in a full stop is compared as text.
    """
    return grade([(gold, completion)], shared_pool(), markers, bare_number=bare_number)[0].correct


def grade(
    items: Sequence[tuple[str, str]], pool: VerifierPool, markers: Markers = FORMS, *, bare_number: bool = False
) -> list[Verdict]:
    """The verdict of each (gold answer, completion), in order; like `verify`, many at a time."""
    found = [(gold, _find(completion, markers, bare_number)) for gold, completion in items]
    keys = [None if answer is None else (gold, *answer) for gold, answer in found]
    verdicts = _judge([key for key in keys if key is not None], pool)
    return [Verdict(False, None, "no_answer") if key is None else verdicts[key] for key in keys]


def equal(one: str, other: str, pool: VerifierPool) -> bool:
    """Whether two final answers are the same one, by the rule of `grade` (`one` is taken for gold)."""
    key = (one, other, False)
    return _judge([key], pool)[key].correct


def same_answer(gold: str, completion: str, markers: Markers) -> Verdict:
    """The strict verdict: whole numbers as numbers, anything else as text without blanks."""
    answer = extract_answer(completion, markers)
    if answer is None:
        return Verdict(False, None, "no_answer")
    return Verdict(same_text(gold, answer), answer, "plain")


def outcome_shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """The share of the verdicts that has each outcome, for the log of a run."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return {outcome: counts[outcome] / len(verdicts) for outcome in OUTCOMES}


@cache
def shared_pool() -> VerifierPool:
    """The pool of `verify` and of every task: started when the first formulas come, ended with this process."""
    pool = VerifierPool(workers=min(MAX_WORKERS, os.cpu_count() or 1))
    atexit.register(pool.close)
    return pool


def _judge(keys: Sequence[Key], pool: VerifierPool) -> dict[Key, Verdict]:
    """The verdict of each key; a group's completions often give the same answer, which is compared once."""
    verdicts: dict[Key, Verdict] = {}
    asked: list[Key] = []
    for key in dict.fromkeys(keys):
        verdict = _plain_verdict(*key)
        if verdict is None:
            asked.append(key)
        else:
            verdicts[key] = verdict
    for key, result in zip(asked, pool.compare([(gold, answer) for gold, answer, _ in asked]), strict=True):
        outcome = result if isinstance(result, str) else "symbols"
        verdicts[key] = Verdict(result is True, key[1], outcome)
    return verdicts


def _find(completion: str, markers: Markers, bare_number: bool) -> tuple[str, bool] | None:
    """The final answer, and whether it counts only to the letter; None without one."""
    span = find_answer(completion, markers)
    if span is not None:
        answer = completion[span.answer_start : span.answer_end].strip()
        after_hash = completion[span.marker_start : span.answer_start] == HASH
        return answer, after_hash and answer.endswith(".")
    if bare_number and (numbers := _NUMBER.findall(completion)):
        return numbers[-1], False
    return None


def _plain_verdict(gold: str, answer: str, to_the_letter: bool) -> Verdict | None:
    """The verdict where no algebra is needed, else None."""
    if to_the_letter or len(answer) > MAX_CHARACTERS:
        return Verdict(same_text(gold, answer), answer, "plain" if to_the_letter else "too_long")
    try:
        return Verdict(judge(gold, answer, PlainOnly()), answer, "plain")
    except NeedsSymbolsError:
        return None
