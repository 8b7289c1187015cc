"""Where first errors are and which signal points there, by hand on four completions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.signals.error_location import error_location, tenths
from oar.common.errors import DataError
from tests.experiments.made import C, O, W, examined

FOUND = examined(
    {
        "late": [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]],
        "flat": [[1.0] * 5] * 4,
    },
    problems=["a", "a", "b", "c"],
    correct=[False, False, False, True],
    roles=[[C, W, W, W, O]] * 4,
    errors=[0, 4, None, None],
    first_errors=["before", "operator", "rest", "nowhere"],
)


def values(split: str, signal: str) -> dict[str, float]:
    table = error_location(FOUND, pairs=[("late", "flat")], seed=0)
    rows = table[(table["split"] == split) & (table["signal"] == signal)]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def test_where_errors_are() -> None:
    shares = values("wrong", "first errors")
    assert (
        shares["errors_at_before"] == shares["errors_at_operator"] == shares["errors_at_rest"] == pytest.approx(1 / 3)
    )
    assert shares["errors_at_nowhere"] == shares["errors_at_word"] == 0
    assert sum(shares.values()) == pytest.approx(1)
    places = values("located", "first errors")
    assert [places[f"errors_at_{tenth / 10:.1f}"] for tenth in (0, 1, 5, 8, 9)] == pytest.approx(
        [1 / 4] * 2 + [0] + [1 / 4] * 2
    )


def test_who_points_there() -> None:
    assert values("located", "late")["error_top_fifth"] == 1 / 2
    assert values("first third", "late") == {"error_top_fifth": 0, "error_percentile": 0}
    assert values("last third", "late") == {"error_top_fifth": 1, "error_percentile": 1}
    assert values("middle third", "late") == {}
    assert values("before", "late")["error_percentile"] == 0
    assert values("operator", "late")["error_percentile"] == 1
    assert values("located", "flat")["error_top_fifth"] == pytest.approx(1 / 5)
    assert values("first third", "late - flat")["error_top_fifth"] == pytest.approx(-1 / 5)


def test_a_model_without_an_error_in_the_reasoning_is_refused() -> None:
    """There is nothing to point at, and no picture to draw."""
    told = {"problems": ["a", "b"], "roles": [[C, W]] * 2, "first_errors": ["rest", "nowhere"]}
    unlocated = examined({"flat": [[1, 1]] * 2}, correct=[False, True], errors=[None, None], **told)
    with pytest.raises(DataError, match="first error is in the reasoning, but none of 2 is one"):
        error_location(unlocated, pairs=[], seed=0)


def test_where_a_signal_lies() -> None:
    shares = values("located", "late")
    assert [shares[f"mass_at_{tenth / 10:.1f}"] for tenth in range(10)] == pytest.approx(
        [each / 30 for each in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)]
    )


@given(st.lists(st.floats(0, 9), min_size=1, max_size=40).filter(lambda each: sum(each) > 1e-3))
def test_tenths_are_a_distribution_and_a_constant_is_uniform(signal: list[float]) -> None:
    found = tenths(np.array(signal))
    assert found.sum() == pytest.approx(1)
    assert (found >= -1e-12).all()
    assert tenths(np.full(len(signal), 0.3)) == pytest.approx([0.1] * 10)
    halves = found[:5].sum()
    whole = len(signal) // 2
    by_hand = (sum(signal[:whole]) + (signal[whole] / 2 if len(signal) % 2 else 0)) / sum(signal)
    assert halves == pytest.approx(by_hand, abs=1e-9)


def test_nothing_lies_nowhere() -> None:
    assert np.isnan(tenths(np.zeros(3))).all()
