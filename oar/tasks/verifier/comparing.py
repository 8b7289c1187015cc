"""What a verifier process does with formulas: math-verify reads them, sympy compares them. Loaded by worker.py alone."""

from oar.tasks.verifier.structure import formulas, judge, read
from oar.tasks.verifier.symbols import Sympy, comparable

# Parsers and caches that every child inherits.
WARM_UP = (
    (r"\frac{\sqrt{3}}{2}x^2+1", r"x^{2}\cdot\sqrt{3}/2+1"),
    (r"2\pi", r"\pi\cdot 2"),
    (r"\sin^2 y", r"1-\cos^2 y"),
)


def warm_up() -> None:
    """Compare some formulas, the first of which takes a second."""
    for gold, answer in WARM_UP:
        judge(gold, answer, Sympy())


def reply_to(request: dict[str, str]) -> dict[str, object]:
    """`correct` for a gold answer and an answer, `unparsable` formulas for a gold answer alone."""
    if "answer" in request:
        return {"correct": judge(request["gold"], request["answer"], Sympy())}
    tree = read(request["gold"])
    return {"unparsable": [] if tree is None else [latex for latex in formulas(tree) if not comparable(latex)]}
