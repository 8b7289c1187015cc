"""What is asked of the sweeps that METHOD.md names, and what the paper says; any other setting gets a plain question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.stability.levels import short


@dataclass(frozen=True, slots=True)
class Study:
    """The words of a page. `reference`: the level that the others are held against; None: the first."""

    title: str
    question: str
    paper: str
    reference: tuple[Any, ...] | None = None


OTHER_SETTING = "That is on Qwen2.5-7B; what holds or fails on another model and task says nothing of it."
KNOWN = {
    ("gating.tau", "gating.beta"): Study(
        "The stability frontier over tau and beta",
        "Where on the plane of `gating.tau` (level of the gate's threshold) and `gating.beta` (strength of the boost) does "
        "training go well, how far does credit concentrate, and does anything collapse?",
        "tau 0.3 to 0.7 is stable, too low a tau collapses the entropy, too high a one slows learning; its defaults are "
        f"tau 0.4 and beta 2 (docs/METHOD.md §5, §6, §7.3). {OTHER_SETTING}",
        (0.4, 2),
    ),
    ("gating.name",): Study(
        "Gating: both levels, one of them, none",
        "What do boosting and suppressing contribute, each on its own?",
        f"Boosting only and suppressing only are worse than both together (docs/METHOD.md §6). {OTHER_SETTING}",
        ("bilevel",),
    ),
    ("probe.name",): Study(
        "Outcome probes",
        "Which distribution should stand for the model's answer when importance is measured?",
        "`as_mean` is above `lt_logits` and `as_joint`; the default is `warmup`, `lt_logits` first and `as_mean` after it "
        f"(docs/METHOD.md §3). {OTHER_SETTING}",
        ("warmup",),
    ),
}


def study_of(keys: Sequence[str]) -> Study:
    """The study that compares these settings."""
    names = " and ".join(f"`{key}`" for key in keys)
    plain = Study(
        f"A sweep over {' and '.join(map(short, keys))}",
        f"What does {names} change?",
        "docs/METHOD.md holds nothing that the paper says of it.",
    )
    return KNOWN.get(tuple(keys), plain)
