"""Are problems of one set in another? Normalised exact match, and overlap of 13-grams as in the GPT-3 report.

13 words in a row are often shared without any leak: "Enter your answer in the form ..." stands in dozens of problems,
and the same text with another number is another problem. So a copy is a problem whose text is the same, or of whose
13-grams most stand in one problem that has the same answer as well; single shared 13-grams are only counted.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oar.tasks.problem import Problem, ProblemSet

N = 13
OVERLAP = 0.8  # of a problem's 13-grams in one other problem, from which the two are the same if their answers are
DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)  # code of figures: much of it is alike in all of them
TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^!|]")  # x + 1 is not x - 1
SPELLING = re.compile(r"\\left\b|\\right\b|\\displaystyle\b|\\[,;:! ]|[\s${}]")  # changes nothing that a problem asks
FRACTION = re.compile(r"\\[dt]frac\b")

Gram = tuple[str, ...]


class Copy(NamedTuple):
    """A problem of the benchmark and the one it is a copy of; `overlap` is the share of its 13-grams there (exact: 1)."""

    benchmark_id: str
    train_id: str
    kind: str  # exact or overlap
    overlap: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a training set (or another benchmark) has of a benchmark."""

    train: str
    benchmark: str
    problems: int  # of the benchmark
    copies: Sequence[Copy]
    sharing: int  # problems of the benchmark that share a 13-gram at least
    largest_overlap: float  # the largest share of a problem's 13-grams in one other problem
    too_short: int  # problems without a 13-gram: for them there is only the exact match

    @property
    def copied(self) -> set[str]:
        """Ids of the benchmark's problems that have a copy."""
        return {copy.benchmark_id for copy in self.copies}


def compare(train: ProblemSet, benchmark: ProblemSet, overlap: float = OVERLAP) -> Comparison:
    """Look for every problem of `benchmark` in `train`. Seconds: about one per 10,000 training problems."""
    texts, holders = defaultdict(list), defaultdict(list)
    grams = [_grams(problem.question) for problem in benchmark.problems]
    for place, problem in enumerate(benchmark.problems):
        texts[_plain(problem.question)].append(place)
        for gram in grams[place]:
            holders[gram].append(place)
    largest = [0.0] * len(grams)
    copies = []
    for problem in train.problems:
        same = texts.get(_plain(problem.question), [])
        copies += [Copy(benchmark.problems[place].id, problem.id, "exact", 1.0) for place in same]
        for place, count in _shared(problem, holders).items():
            share = count / len(grams[place])
            largest[place] = max(largest[place], share)
            asked = benchmark.problems[place]
            if share >= overlap and place not in same and _plain(asked.answer) == _plain(problem.answer):
                copies.append(Copy(asked.id, problem.id, "overlap", share))
    return Comparison(
        train=train.name,
        benchmark=benchmark.name,
        problems=len(grams),
        copies=copies,
        sharing=sum(share > 0 for share in largest),
        largest_overlap=max(largest, default=0.0),
        too_short=sum(not found for found in grams),
    )


def repeated(problem_set: ProblemSet) -> int:
    """How many problems of a set have a text that stands in it before."""
    return len(problem_set.problems) - len({_plain(problem.question) for problem in problem_set.problems})


def _shared(problem: Problem, holders: dict[Gram, list[int]]) -> Counter[int]:
    """How many 13-grams of the benchmark's problems stand in this one."""
    return Counter(place for gram in _grams(problem.question) for place in holders.get(gram, ()))


def _plain(text: str) -> str:
    """A text without what only changes how it is written: case, white space, dollars, braces, \\left, \\dfrac."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return SPELLING.sub("", FRACTION.sub(r"\\frac", folded)).rstrip(".?!")


def _grams(question: str) -> set[Gram]:
    tokens = TOKEN.findall(unicodedata.normalize("NFKC", DRAWING.sub(" ", question)).casefold())
    return {tuple(tokens[start : start + N]) for start in range(len(tokens) - N + 1)}
