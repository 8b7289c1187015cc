"""What the paper claims, as data, and when a measurement bears a claim out.

Every claim says in which range a quantity lies (`target`): a number is a range of one value, "A is above B" the range of a
difference from 0 up. So one rule, `verdict`, judges them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from oar.common.errors import ConfigError, DataError
from oar.common.provenance import ROOT
from oar.config import validated
from oar.config.saved import saved_config

REPRODUCED = "reproduced"
WITHIN = "within the confidence interval"
NOT_REPRODUCED = "not reproduced"
TOO_FEW = "too few seeds to tell"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, WITHIN, NOT_REPRODUCED, TOO_FEW, NOT_RUN)
MIN_SEEDS = 3  # at the full number of steps: with two, Student's t is 12.7, and a bootstrap draws one of them
OVERHEAD = "overhead"
REFERENCE = ROOT / "results" / "reference"  # the paper's values and claims


def verdict(low: float, high: float, target: tuple[float, float], tolerance: float = 0.0) -> str:
    """The verdict of the 95 % interval [low, high] of a quantity on the claim that it lies in `target` = (a, b), a <= b.

    The interval is the hull of two (oar.statistics.intervals.Estimate), so what holds for the whole of it both of them say.

    - `reproduced`: the whole interval lies inside the claimed range, widened by the tolerance on both sides:
      a - tolerance < low and high < b + tolerance. For "A is above B" (a = 0, no upper end, tolerance 0) that is an interval
      above 0; for a number, an interval that leaves the paper's number by less than the tolerance at either end.
    - `within the confidence interval`: otherwise, when interval and claimed range have a value in common. For "A is above
      B" the interval then holds 0, for a number it holds the paper's. The claim is neither borne out nor contradicted.
    - `not reproduced`: otherwise. For "A is above B" the interval lies below 0, for a number beside the paper's.

    Two more verdicts need no interval; the reason stands beside them. `too few seeds to tell`: of fewer than MIN_SEEDS seeds, or
    of runs that are shorter than their profile's. `not run`: of a claim whose quantity the runs at hand do not have.
    """
    low, high = round(low, 9), round(high, 9)  # what sums leave behind their last digits decides nothing
    smallest, largest = target
    if smallest - tolerance < low and high < largest + tolerance:
        return REPRODUCED
    return WITHIN if low <= largest and high >= smallest else NOT_REPRODUCED


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: the `quantity` (of oar.analysis.claims.ledger) of `arms` lies in `target`.

    `arms`: name to the settings that make a run one of it, in the quantity's order. `needs`: settings that every run must
    have (a number holds for the model it was measured on), none where the claim is about an order. `sets`: the benchmarks
    averaged and how many problems each must have, empty for all that there are. `target`, `tolerance`: in the quantity's unit.
    """

    id: str
    claim: str
    quantity: str
    arms: Mapping[str, Mapping[str, Any]]
    target: tuple[float, float]
    tolerance: float
    needs: Mapping[str, Any]
    sets: Mapping[str, int]
    source: str

    def target_text(self) -> str:
        """The claimed range for a table: "> 0", "90.5" or "80 to 90"."""
        smallest, largest = self.target
        if largest == inf:
            return f"> {smallest:g}"
        return f"{smallest:g}" if smallest == largest else f"{smallest:g} to {largest:g}"


@dataclass
class StatedClaim:
    """An entry under `claims` in claims.yaml; `arms` and `model` name entries of the file."""

    id: str
    claim: str
    quantity: str
    arms: list[str]
    target: list[float]
    tolerance: float = 0.0
    model: str | None = None


@dataclass
class Numbers:
    """How the columns of paper.csv are tested."""

    sets: dict[str, dict[str, int]]
    tolerance: float
    overhead_against: str
    overhead_tolerance: float


@dataclass
class ClaimsFile:
    """claims.yaml; its comments say what each key is."""

    source: str
    models: dict[str, dict[str, Any]]
    arms: dict[str, dict[str, Any]]
    numbers: Numbers
    claims: list[StatedClaim] = field(default_factory=list)

    def __post_init__(self) -> None:
        for claim in self.claims:
            for name, known in [*((arm, self.arms) for arm in claim.arms), (claim.model, self.models)]:
                if name is not None and name not in known:
                    raise ConfigError(
                        f"The claim {claim.id!r} must name one of {', '.join(known)}, but names {name!r}."
                    )
            if len(claim.target) != 2 or claim.target[0] > claim.target[1]:
                raise ConfigError(f"The claim {claim.id!r} must have a target [from, to], but has {claim.target}.")


def load_claims(folder: Path = REFERENCE) -> list[Claim]:
    """The numbers of paper.csv and the claims of claims.yaml. Raises DataError where a file is missing, else ConfigError."""
    for name in ("paper.csv", "claims.yaml"):
        if not (folder / name).is_file():
            raise DataError(f"{folder} must hold the paper's values and claims, but has no {name}.")
    file = validated(saved_config(folder / "claims.yaml"), ClaimsFile)
    paper = pd.read_csv(folder / "paper.csv", dtype=str, keep_default_na=False)
    stated = [
        Claim(
            id=one.id,
            claim=one.claim,
            quantity=one.quantity,
            arms={name: file.arms[name] for name in one.arms},
            target=(one.target[0], one.target[1]),
            tolerance=one.tolerance,
            needs={} if one.model is None else file.models[one.model],
            sets={},
            source=file.source,
        )
        for one in file.claims
    ]
    claims = [claim for row in paper.to_dict("records") for claim in _numbers(row, file)] + stated
    names = [claim.id for claim in claims]
    if len(set(names)) != len(names):
        raise ConfigError("Two claims have the same id: give each one of its own.")
    return claims


def _numbers(row: Mapping[Any, str], file: ClaimsFile) -> list[Claim]:
    """The claims in one line of paper.csv; a blank claims nothing."""
    numbers, model, method = file.numbers, row["model"], row["method"]
    against = numbers.overhead_against
    found = []
    for column, text in row.items():
        overhead = column == OVERHEAD
        if not text or not (overhead or column in numbers.sets) or (overhead and method == against):
            continue
        names = (method, against) if overhead else (method,)
        found.append(
            Claim(
                id=f"{model}, {method}, {column}",
                claim=f"{model}: {method} has {text}{'x overhead' if overhead else ' on ' + column.replace('_', ' ')}",
                quantity=OVERHEAD if overhead else "accuracy",
                arms={name: file.arms[name] for name in names},
                target=(float(text), float(text)),
                tolerance=numbers.overhead_tolerance if overhead else numbers.tolerance,
                needs=file.models[model],
                sets={} if overhead else numbers.sets[column],
                source=row["source"],
            )
        )
    return found
