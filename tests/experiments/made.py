"""Completions made by hand: what is true of them, and signals on them."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.signals.examined import Examined
from oar.analysis.signals.recall import Truth
from oar.method.importance import CreditInputs
from oar.statistics.attribution import Floats

W, C, O = "word", "before", "operator"  # noqa: E741


def examined(
    importance: Mapping[str, Sequence[Sequence[float]]],
    *,
    weights: Mapping[str, Sequence[Sequence[float]]] | None = None,
    problems: Sequence[str],
    correct: Sequence[bool],
    roles: Sequence[Sequence[str]],
    errors: Sequence[int | None],
    first_errors: Sequence[str],
    inputs: CreditInputs | None = None,
) -> Examined:
    """`errors`: of each completion the place of its first wrong token in the reasoning."""
    kinds = [np.array(each) for each in roles]
    marks = [
        np.arange(len(each)) == (-1 if error is None else error) for each, error in zip(kinds, errors, strict=True)
    ]
    truth = Truth(list(problems), np.array(correct), [each != W for each in kinds], marks)
    values = _arrays(importance)
    return Examined(truth, kinds, first_errors, values, _arrays(weights or importance), inputs)  # type: ignore[arg-type]


def _arrays(signals: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, list[Floats]]:
    return {name: [np.array(each, dtype=float) for each in values] for name, values in signals.items()}
