"""The five difficulty tiers that stand where the paper's five benchmarks stand, under names of their own."""

from dataclasses import dataclass, replace

from oar.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tier:
    """How hard a problem is.

    `operators` are those of "+-*/" that may occur (`*` only doubles, `/` only halves); every state lies in
    0..`largest_state`; `filler` is the number of meaningless words a demonstration puts before each equation: it
    dilutes credit on purpose; `english` ones are spelled as people do, for any tokenizer.
    """

    name: str
    level: int
    operations: int
    operators: str
    largest_state: int
    distractors: int
    filler: int = 0
    english: bool = False


WORD_TIERS = ("words1", "words2", "words3", "words4", "words5")
ENGLISH_TIERS = ("english1", "english2", "english3", "english4", "english5")
TIER_NAMES = (*WORD_TIERS, *ENGLISH_TIERS)


def make_tiers(filler: int = 0, *, english: bool = False) -> tuple[Tier, ...]:
    """All tiers, easiest first, with `filler` words per operation in the demonstrations."""
    if filler < 0:
        raise ConfigError(f"filler must be 0 or more words per operation, got {filler}.")
    tiers = (
        Tier("words1", 1, operations=2, operators="+-", largest_state=20, distractors=0, filler=filler),
        Tier("words2", 2, operations=3, operators="+-*", largest_state=30, distractors=0, filler=filler),
        Tier("words3", 3, operations=4, operators="+-*/", largest_state=50, distractors=0, filler=filler),
        Tier("words4", 4, operations=4, operators="+-*/", largest_state=50, distractors=1, filler=filler),
        Tier("words5", 5, operations=6, operators="+-*/", largest_state=50, distractors=2, filler=filler),
    )
    named = zip(tiers, ENGLISH_TIERS, strict=True)
    return tuple(replace(tier, name=name, english=True) for tier, name in named) if english else tiers


def tier_named(name: str, filler: int = 0) -> Tier:
    """The tier called `name`; an unknown name is a ConfigError."""
    for tier in (*make_tiers(filler), *make_tiers(filler, english=True)):
        if tier.name == name:
            return tier
    raise ConfigError(f"There is no tier {name!r}; choose one of {', '.join(TIER_NAMES)}.")
