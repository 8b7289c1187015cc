"""Right reasoning made wrong at one step: with a token to blame, or with none."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from random import Random

WRONG_VALUE, NO_VALUE, NO_STEP, TWICE = EDITS = ("wrong value", "value left out", "step left out", "step twice")


@dataclass(frozen=True, slots=True)
class Edited:
    """The reasoning's token ids, and the place of the first one that is not the right one's."""

    ids: tuple[int, ...]
    place: int


def edits(ids: Sequence[int], starts: Sequence[int], digits: Set[int], rng: Random) -> dict[str, Edited]:
    """By name of EDITS right reasoning `ids` with one step changed, drawn with `rng`, never the last: something comes after.

    starts: where steps begin, but the first; digits: the token ids of single digits. A step's value is its last run of digits; a
    wrong one has another last digit. An edit that cannot be told from the right reasoning is left out, and all where there is
    no such step.
    """
    steps = [list(ids[start:end]) for start, end in pairwise([0, *starts, len(ids)])]
    with_value = [number for number, step in enumerate(steps[:-1]) if digits & set(step)]
    if not with_value:
        return {}
    chosen = rng.choice(with_value)
    step = steps[chosen]
    end = max(place for place, token in enumerate(step) if token in digits) + 1
    start = next(place for place in range(end, -1, -1) if place == 0 or step[place - 1] not in digits)
    other = rng.choice(sorted(digits - {step[end - 1]}))
    changed = {
        WRONG_VALUE: [[*step[: end - 1], other, *step[end:]]],
        NO_VALUE: [[*step[:start], *step[end:]]],
        NO_STEP: [],
        TWICE: [step, step],
    }
    found = {}
    for name, instead in changed.items():
        written = [token for one in (*steps[:chosen], *instead, *steps[chosen + 1 :]) for token in one]
        differs = [place for place, (one, right) in enumerate(zip(written, ids, strict=False)) if one != right]
        if differs:
            found[name] = Edited(tuple(written), differs[0])
    return found
