"""How an answer was read, in one line for people: beside a verdict it shows why."""

from oar.tasks.verifier.answers import Answer, Based, Formula, Group, Relation, Words
from oar.tasks.verifier.structure import read


def shown(answer: str) -> str | None:
    """The answer as the comparison sees it, e.g. `1/2` for `\\frac12` and `[1, 2)`; None where it cannot be read."""
    tree = read(answer)
    return None if tree is None else _line(tree)


def _line(tree: Answer) -> str:
    match tree:
        case Words():
            return tree.text
        case Formula():
            unit = tree.unit if tree.unit in ("", "%") else f" {tree.unit}"
            return tree.latex if tree.value is None else f"{tree.value}{unit}"
        case Based():
            return f"{tree.digits}_{tree.base}"
        case Relation():
            return f"{tree.left.strip()} {tree.op} {tree.right.strip()}"
        case Group():
            items = ", ".join(map(_line, tree.items))
            bracketed = len(tree.kind) == 2
            return f"{tree.kind[0]}{items}{tree.kind[1]}" if bracketed else f"{tree.kind} {{{items}}}"
