"""How methods are called, in which order they stand, and which of them are no methods but controls."""

from collections.abc import Sequence

BASE, GRPO = "base", "grpo"
LABELS = {BASE: "Base model", GRPO: "GRPO", "oar_g": "OAR-G", "oar_p": "OAR-P"}
METHOD, CONTROL, ORACLE = "method", "control", "oracle"
KINDS = (METHOD, CONTROL, ORACLE)
# They keep the learner and take from the credit what it is said to know: a gain that these have too is not credit's.
CONTROLS = ("entropy", "random", "position", "shuffled", "inverted", "random_reward")
ORACLES = "oracle_"  # they are told by the task what no method knows


def kind(method: str) -> str:
    """One of KINDS; the base model and GRPO, which the others are compared with, count as methods."""
    if method in CONTROLS:
        return CONTROL
    return ORACLE if method.startswith(ORACLES) else METHOD


def method_order(method: str) -> tuple[int, int, str]:
    """Base model, GRPO, OAR-G, OAR-P, then everything else by name; after all methods the controls, then the oracles."""
    known = list(LABELS).index(method) if method in LABELS else len(LABELS)
    return KINDS.index(kind(method)), known, method


def label(method: str) -> str:
    """How a method is called in tables and pictures; what is none is marked."""
    return LABELS.get(method, method if kind(method) == METHOD else f"{method} ({kind(method)})")


def listed(names: Sequence[str]) -> str:
    """`a, b and c`, or `none`, by how methods are called."""
    *first, last = [label(name) for name in names] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last
