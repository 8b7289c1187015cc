"""Where do wrong completions first go wrong, and does a signal point there (docs/METHOD.md §7.8)?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.signals.examined import NOWHERE, Examined
from oar.analysis.signals.recall import COLUMNS, ERROR_FIFTH, ERROR_PERCENTILE, WRONG, Row, differences, split_averages
from oar.common.errors import DataError
from oar.statistics.attribution import Floats, auc, recall_at_top_fifth
from oar.tasks.words.oracle import CAUSAL_ROLES, EQUALS, NUMBER, REST, WORD

LOCATED, ERRORS = "located", "first errors"
THIRDS = ("first third", "middle third", "last third")
PLACES = (*CAUSAL_ROLES, EQUALS, NUMBER, WORD, REST, NOWHERE)
TENTHS = 10
AT, MASS_AT = "errors_at", "mass_at"


def error_location(examined: Examined, *, pairs: Sequence[Sequence[str]], seed: int) -> pd.DataFrame:
    """COLUMNS. The signal ERRORS tells where the first errors are; every other signal, whether it points there.

    ERRORS, split `wrong`: `errors_at_<role>`, the share of wrong completions whose first wrong token has that role (REST: it
    is in the answer, NOWHERE: it has no token). Split `located`, of wrong completions whose first error is in the reasoning:
    `errors_at_0.0` ..., the share of them in each tenth of the reasoning, and for other signals `mass_at_0.0` ..., the share
    of the signal there. ERROR_FIFTH and ERROR_PERCENTILE, as in `oar.analysis.signals.recall`, in all of `located`, by
    the third of the reasoning and by the role of the error. A pair (a, b) adds `a - b`, completion by completion. Raises
    DataError where no completion has a first error in the reasoning.
    """
    truth, problems = examined.truth, examined.problems
    located = np.array([bool(error.any()) for error in truth.error])
    if not located.any():
        raise DataError(
            f"A model must give wrong completions whose first error is in the reasoning, but none of {len(located)} is one: "
            "raise problems or samples, or leave the model out of models."
        )
    wrong, roles = ~truth.correct, np.asarray(examined.first_errors)
    at = pd.DataFrame({f"{AT}_{place}": (roles == place).astype(float) for place in PLACES})
    rows: list[Row] = split_averages({ERRORS: at}, {WRONG: wrong}, problems, seed=seed)

    chosen = np.flatnonzero(located)
    errors = [truth.error[row].astype(float) for row in chosen]
    position = np.array([error.argmax() / error.size for error in errors])
    splits = {LOCATED: np.ones(len(chosen), dtype=bool)}
    splits |= {name: np.floor(position * 3) == third for third, name in enumerate(THIRDS)}
    splits |= {place: roles[chosen] == place for place in CAUSAL_ROLES}
    metrics = {
        name: pd.DataFrame(
            [
                {ERROR_FIFTH: recall_at_top_fifth(values[row], error), ERROR_PERCENTILE: auc(values[row], error)}
                for row, error in zip(chosen, errors, strict=True)
            ]
        )
        for name, values in examined.importance.items()
    }
    rows += split_averages(differences(metrics, pairs), splits, problems[chosen], seed=seed)

    shapes = {ERRORS: _by_tenth(errors, AT)}
    shapes |= {
        name: _by_tenth([values[row] for row in chosen], MASS_AT) for name, values in examined.importance.items()
    }
    rows += split_averages(shapes, {LOCATED: splits[LOCATED]}, problems[chosen], seed=seed)
    return pd.DataFrame(rows, columns=COLUMNS)


def _by_tenth(values: Sequence[Floats], metric: str) -> pd.DataFrame:
    """A row per completion, a column per tenth of its tokens: the share of `values` (T,) there; NaN where all are 0."""
    return pd.DataFrame(
        [tenths(each) for each in values], columns=[f"{metric}_{t / TENTHS:.1f}" for t in range(TENTHS)]
    )


def tenths(values: Floats) -> Floats:
    """The share of (T,) in each tenth of the tokens, (10,); a token that straddles a border counts on both sides in part."""
    total = values.sum()
    if not total > 0:
        return np.full(TENTHS, np.nan)
    edges = np.linspace(0, values.size, TENTHS + 1)
    reached = np.interp(edges, np.arange(values.size + 1), np.concatenate([[0.0], values.cumsum()]))
    return np.asarray(np.diff(reached) / total)
