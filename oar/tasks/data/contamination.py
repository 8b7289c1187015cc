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

from oar.tasks.problem import ProblemSet

N = 13
OVERLAP = 0.8  # of a problem's 13-grams in one other problem, from which the two are the same if their answers are
DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)  # code of figures: much of it is alike in all of them
TOKEN = re.compile(r"[^\W_]+|[-+*/=<>^!|]")  # x + 1 is not x - 1
SPELLING = re.compile(
    r"\\(?:left|right|displaystyle)(?![a-z])|\\[,;:! ]|[\s${}]"
)  # changes nothing that a problem asks
FRACTION = re.compile(r"\\[dt]frac(?![a-z])")


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


@dataclass(frozen=True, slots=True)
class Prints:
    """What is compared of a set, problem by problem: plain text, plain answer, and the hashes of its 13-grams."""

    problem_set: ProblemSet
    texts: Sequence[str]
    answers: Sequence[str]
    grams: Sequence[frozenset[int]]

    @classmethod
    def of(cls, problem_set: ProblemSet) -> "Prints":
        """Seconds: about one per 20,000 problems."""
        problems = problem_set.problems
        return cls(
            problem_set,
            [_plain(problem.question) for problem in problems],
            [_plain(problem.answer) for problem in problems],
            [_grams(problem.question) for problem in problems],
        )

    @property
    def repeated(self) -> int:
        """How many problems have a text that stands in the set before."""
        return len(self.texts) - len(set(self.texts))


def compare(train: Prints, benchmark: Prints, overlap: float = OVERLAP) -> Comparison:
    """Look for every problem of `benchmark` in `train`."""
    texts, holders = defaultdict(list), defaultdict(list)
    for place, text in enumerate(benchmark.texts):
        texts[text].append(place)
        for gram in benchmark.grams[place]:
            holders[gram].append(place)
    largest = [0.0] * len(benchmark.texts)
    asked = benchmark.problem_set.problems
    copies = []
    for problem, text, answer, grams in zip(
        train.problem_set.problems, train.texts, train.answers, train.grams, strict=True
    ):
        same = texts.get(text, [])
        copies += [Copy(asked[place].id, problem.id, "exact", 1.0) for place in same]
        for place, count in Counter(place for gram in grams for place in holders.get(gram, ())).items():
            share = count / len(benchmark.grams[place])
            largest[place] = max(largest[place], share)
            if share >= overlap and place not in same and answer == benchmark.answers[place]:
                copies.append(Copy(asked[place].id, problem.id, "overlap", share))
    return Comparison(
        train=train.problem_set.name,
        benchmark=benchmark.problem_set.name,
        problems=len(largest),
        copies=copies,
        sharing=sum(share > 0 for share in largest),
        largest_overlap=max(largest, default=0.0),
        too_short=sum(not found for found in benchmark.grams),
    )


def _plain(text: str) -> str:
    """A text without what only changes how it is written: case, white space, dollars, braces, \\left, \\dfrac."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return SPELLING.sub("", FRACTION.sub(r"\\frac", folded)).rstrip(".?!")


def _grams(question: str) -> frozenset[int]:
    tokens = TOKEN.findall(unicodedata.normalize("NFKC", DRAWING.sub(" ", question)).casefold())
    return frozenset(hash(tuple(tokens[start : start + N])) for start in range(len(tokens) - N + 1))
