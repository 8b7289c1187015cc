from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.common.errors import DataError
from oar.evaluation.pass_at_k import group_by, majority_score, pass_at_k, sizes


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)  # of 6 pairs 3 hold the right one
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # of 10 triples 1 is of the three wrong ones
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_mean_over_all_draws(verdicts: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(verdicts)))
    draws = [any(draw) for draw in combinations(verdicts, k)]
    assert pass_at_k(len(verdicts), sum(verdicts), k) == pytest.approx(sum(draws) / len(draws))


def test_pass_at_k_of_many_samples_neither_overflows_nor_loses_its_digits() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert pass_at_k(10_000, 3, 1) == pytest.approx(3e-4, rel=1e-9)


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 2), (4, -1, 2), (0, 0, 0)])
def test_counts_that_cannot_be(samples: int, correct: int, k: int) -> None:
    with pytest.raises(DataError, match=r"pass@k needs 1 <= k <= samples"):
        pass_at_k(samples, correct, k)


@pytest.mark.parametrize(
    ("labels", "correct", "score"),
    [
        ("aab", [True, True, False], 1.0),
        ("aab", [False, False, True], 0.0),  # one right sample among wrong ones that agree
        ("ab", [True, False], 0.5),  # a tie is a fair draw ...
        ("ba", [False, True], 0.5),  # ... whatever the order
        ("abc", [True, False, False], 1 / 3),
        ("aabb", [False, False, True, True], 0.5),
        ([None, None, None, "a"], [False, False, False, True], 1.0),  # no answer does not vote
        ([None, None], [False, False], 0.0),
        ("aa", [True, False], 0.5),  # labels that disagree with the verdicts
    ],
)
def test_majority_by_hand(labels: list[str | None], correct: list[bool], score: float) -> None:
    assert majority_score(labels, correct) == pytest.approx(score)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), max_size=8), st.randoms())
def test_majority_does_not_depend_on_the_order(votes: list[tuple[str | None, bool]], random: object) -> None:
    shuffled = list(votes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def score(rows: list[tuple[str | None, bool]]) -> float:
        return majority_score([label for label, _ in rows], [verdict for _, verdict in rows])

    assert score(shuffled) == pytest.approx(score(votes))


def test_answers_are_grouped_by_an_equivalence() -> None:
    asked = []

    def same(one: str, other: str) -> bool:
        asked.append((one, other))
        return float(one) == float(other)

    assert group_by(same)(["1", "2", "1.0", "1", "02"]) == [0, 1, 0, 0, 1]
    assert ("1", "1") not in asked  # the same text is not compared
    assert group_by(same)([]) == []


def test_sizes_are_powers_of_two_and_all() -> None:
    assert sizes(1) == []
    assert sizes(4) == [2, 4]
    assert sizes(6) == [2, 4, 6]
    assert sizes(32) == [2, 4, 8, 16, 32]
