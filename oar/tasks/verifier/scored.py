"""Answers to procedural problems: a data set's own scorer says how good one is, in a process that nothing it does can hold up."""

import atexit
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache

from oar.tasks.verifier.grade import MAX_WORKERS, Verdict
from oar.tasks.verifier.pool import VerifierPool

TIMEOUT_S = 5.0  # of the processor, in which the problem is made once more too


def score(items: Sequence[tuple[Mapping[str, object], str | None]]) -> list[Verdict]:
    """The verdict of each (`Problem.scored_as`, final answer or None): right where the scorer gives all there is, 1."""
    asked = [{**how, "answer": answer} for how, answer in items if answer is not None]
    replies = iter(_pool().ask(asked) if asked else [])
    return [
        Verdict(False, None, "no_answer") if answer is None else _verdict(answer, next(replies)) for _, answer in items
    ]


def _verdict(answer: str, reply: Mapping[str, object]) -> Verdict:
    found = reply.get("score")
    if not isinstance(found, float) or not math.isfinite(found):
        return Verdict(False, answer, str(reply.get("failed", "crash")), 0.0)
    return Verdict(found >= 1, answer, "plain", found)


@cache
def _pool() -> VerifierPool:
    """Started with the first answer, ended with this process."""
    pool = VerifierPool(min(MAX_WORKERS, os.cpu_count() or 1), TIMEOUT_S, "oar.tasks.verifier.scoring")
    atexit.register(pool.close)
    return pool
