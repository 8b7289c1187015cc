"""Signal and noise of gradients: products by a naive loop, alignment and gain by hand, known mixtures found again."""

import numpy as np
import pandas as pd
import pytest

from experiments.gradient_signal.cosines import (
    ALIGNMENT,
    ALIGNMENT_RATIO,
    BEST,
    GAIN,
    GAIN_RATIO,
    NOISE_SHARE,
    SIGNAL_SHARE,
    TARGET,
    Products,
    best_weights,
    signal_table,
    with_best_weights,
)
from experiments.gradient_signal.foretold import foretold
from oar.common.errors import DataError

INF = float("inf")


def value(table, arm, metric, batch):
    rows = table[(table["arm"] == arm) & (table["metric"] == metric)]
    rows = rows[rows["batch"].isna()] if batch is None else rows[rows["batch"] == batch]
    ((found, low, high),) = rows[["value", "low", "high"]].to_numpy()
    assert low <= found <= high
    return found, low, high


def made(units=400, parameters=30, *, useful=1.0, useless=3.0, seed=0):
    """Two classes of tokens: one with the signal and some noise, one with noise alone."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=parameters)
    one = mean + useful * rng.normal(size=(units, parameters))
    two = useless * rng.normal(size=(units, parameters))
    made = {TARGET: one + two, "uniform": one + two, "one": one, "two": two}
    return mean, {name: array.astype(np.float32) for name, array in made.items()}


def test_products_leave_out_each_unit_in_turn() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 4)).astype(np.float32)
    found = Products.of(a, b)
    for place, kept in enumerate([list(range(5)), *([u for u in range(5) if u != out] for out in range(5))]):
        same = np.mean([a[u] @ b[u] for u in kept])
        across = np.mean([a[u] @ b[v] for u in kept for v in kept if u != v])
        assert found.same[place] == pytest.approx(same, abs=1e-5)
        assert found.across[place] == pytest.approx(across, abs=1e-5)
    with pytest.raises(DataError, match="three or more"):
        Products.of(a[:2], b[:2])


def test_alignment_is_that_of_batches_of_the_size_asked_for() -> None:
    """Against its definition: gradients of many batches, each projected on the true mean."""
    mean, gradients = made()
    table = signal_table(gradients, reference="uniform", classes=["one", "two"], batches=[1, 16, INF], lr=0.1)
    length = np.linalg.norm(mean)
    for batch in (1, 16):
        noise = 10 / batch  # 1 + 3 ** 2
        expected = length / np.sqrt(length**2 + 30 * noise)
        found, low, high = value(table, "uniform", ALIGNMENT, batch)
        assert found == pytest.approx(expected, rel=0.03)
        assert low < expected < high
        without = length / np.sqrt(length**2 + 30 / batch)
        assert value(table, "one", ALIGNMENT_RATIO, batch)[0] == pytest.approx(without / expected, rel=0.03)
    assert value(table, "one", ALIGNMENT_RATIO, INF)[0] == pytest.approx(1, rel=0.05)
    assert value(table, "uniform", ALIGNMENT_RATIO, 16)[0] == 1


def test_noise_is_not_taken_for_signal() -> None:
    """The arm shares its noise with the target, and neither has a mean: their product within a unit is large, and empty."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(300, 50)).astype(np.float32)
    gradients = {TARGET: noise, "arm": noise}
    table = signal_table(gradients, reference="arm", classes=[], batches=[1], lr=1.0)
    found, low, high = value(table, "arm", GAIN, 1)
    assert low < 0 < high
    assert abs(found) < 0.05 * 100 * np.abs(noise).mean() * 50  # what the same units would have given


def test_a_length_that_noise_hides_is_no_number() -> None:
    """Opposite units: the mean square of what is left of them without noise is below 0."""
    signal = np.tile(np.array([1.0, 0.0], dtype=np.float32), (6, 1))
    gradients = {TARGET: signal, "plain": signal, "noisy": np.array([[0.0, 1.0], [0.0, -1.0]] * 3, dtype=np.float32)}
    table = signal_table(gradients, reference="plain", classes=[], batches=[1, INF], lr=1.0)
    noisy = table[(table["arm"] == "noisy") & (table["metric"] == ALIGNMENT_RATIO)].set_index("batch")
    assert noisy.loc[INF, ["value", "low", "high"]].isna().all()
    assert noisy.loc[1, ["value", "low", "high"]].notna().all()
    assert value(table, "plain", ALIGNMENT_RATIO, INF)[0] == 1


def test_the_gain_of_a_step_without_noise_is_that_of_signs() -> None:
    """AdamW divides each parameter's gradient by its own size: lr in the direction of its sign, whatever its scale."""
    target = np.tile(np.array([2.0, -1.0, 0.5, 0.0], dtype=np.float32), (4, 1))
    arm = np.tile(np.array([300.0, -0.01, -4.0, 1.0], dtype=np.float32), (4, 1))
    table = signal_table({TARGET: target, "arm": arm}, reference="arm", classes=[], batches=[1], lr=0.01)
    assert value(table, "arm", GAIN, 1)[0] == pytest.approx(100 * 0.01 * (2.0 + 1.0 - 0.5), rel=1e-4)
    assert value(table, "arm", GAIN_RATIO, 1)[0] == 1
    assert not (table["metric"].eq(GAIN) & np.isinf(table["batch"])).any()


def test_less_noise_makes_a_longer_step_in_the_right_direction() -> None:
    _, gradients = made(useless=6.0)
    table = signal_table(gradients, reference="uniform", classes=["one", "two"], batches=[4], lr=0.1)
    assert value(table, "one", GAIN_RATIO, 4)[1] > 1
    low, high = value(table, "two", GAIN_RATIO, 4)[1:]
    assert low < 0 < high


def test_shares_of_signal_and_noise() -> None:
    _, gradients = made(useful=1.0, useless=3.0)
    table = signal_table(gradients, reference="uniform", classes=["one", "two"], batches=[1], lr=0.1)
    assert value(table, "one", SIGNAL_SHARE, None)[0] == pytest.approx(1, abs=0.1)
    assert value(table, "two", SIGNAL_SHARE, None)[0] == pytest.approx(0, abs=0.1)
    assert value(table, "one", NOISE_SHARE, None)[0] == pytest.approx(0.1, abs=0.01)
    assert value(table, "two", NOISE_SHARE, None)[0] == pytest.approx(0.9, abs=0.01)
    # They are shares of what all classes have, whatever arm the others are held against.
    other = signal_table(
        gradients | {"half": gradients["one"] / 2}, reference="half", classes=["one", "two"], batches=[1], lr=1
    )
    assert value(other, "one", SIGNAL_SHARE, None) == pytest.approx(value(table, "one", SIGNAL_SHARE, None))


def test_the_best_weights_by_class_leave_out_what_has_no_signal() -> None:
    _, gradients = made(units=2000)
    weights = best_weights(np.stack([gradients["one"], gradients["two"]]), gradients[TARGET], 4)
    assert weights == pytest.approx([2, 0], abs=0.1)  # mean absolute value 1
    more = with_best_weights(gradients, ["one", "two"], 4)
    table = signal_table(more, reference="uniform", classes=["one", "two"], batches=[4], lr=0.1)
    best, one = value(table, BEST, ALIGNMENT_RATIO, 4)[0], value(table, "one", ALIGNMENT_RATIO, 4)[0]
    assert best == pytest.approx(one, rel=0.02)


def test_a_class_without_gradient_weighs_nothing_and_changes_nothing() -> None:
    """Such as filler whose completions all have an advantage of 0."""
    _, gradients = made(units=8)
    parts = np.stack([gradients["one"], gradients["two"]])
    without = best_weights(parts, gradients[TARGET], 4)
    with_empty = best_weights(np.stack([*parts, np.zeros_like(parts[0])]), gradients[TARGET], 4)
    assert with_empty[2] == 0
    np.testing.assert_allclose(with_empty[:2] / with_empty[0], without / without[0], rtol=1e-6)


def test_best_weights_are_fitted_on_the_other_half() -> None:
    """Without any signal they gain nothing; fitted to the units they are judged by, they would."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        target = rng.normal(size=(60, 20)).astype(np.float32)
        parts = {name: rng.normal(size=(60, 20)).astype(np.float32) for name in "abcdefgh"}
        more = with_best_weights({TARGET: target, **parts}, list(parts), 1)
        table = signal_table(more, reference="a", classes=[], batches=[1], lr=1.0)
        gain, _, high = value(table, BEST, GAIN, 1)
        found.append(gain / (high - gain))  # in half widths of its interval, so of variance 1/4
    assert abs(np.mean(found)) < 0.5


def test_an_arm_that_is_not_there_is_refused() -> None:
    _, gradients = made(units=4)
    with pytest.raises(DataError, match="'grpo'"):
        signal_table(gradients, reference="grpo", classes=[], batches=[1], lr=1.0)


def test_what_alignment_foretold_by_hand() -> None:
    """In `easy` the order of steps is that of alignment; in `hard` the best-aligned arm never gets there, so it comes last."""
    aligned = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    rows = [
        [arm, ALIGNMENT_RATIO, 4.0, ratio, 0, 0, condition]
        for condition in ("easy", "hard", "few")
        for arm, ratio in aligned.items()
        if condition != "few" or arm in "abc"
    ]
    table = pd.DataFrame(rows, columns=["arm", "metric", "batch", "value", "low", "high", "condition"])
    steps = {"a": 90, "b": 70, "c": 50, "d": 30}
    costs = pd.DataFrame(
        [
            [condition, arm, rate, seed, not (condition == "hard" and arm == "d"), steps[arm] + 10 * seed * slow]
            for condition in ("easy", "hard", "few")
            for arm in steps
            for seed in (1, 2, 3)
            for rate, slow in ((1e-3, 1), (3e-4, 20))  # the better rate counts
        ],
        columns=["condition", "arm", "rate", "seed", "reached", "steps"],
    )
    found = foretold(table, costs, batch=4)
    assert [(condition, arms) for condition, arms, _ in found] == [("easy", 4), ("hard", 4)]
    assert found[0][2] == pytest.approx(1)
    assert found[1][2] == pytest.approx(-0.2)  # ranks 1 2 3 4 against 2 3 4 1: 1 - 6 * 12 / 60
    hidden = table.assign(value=table["value"].where(table["arm"] != "a"))  # by noise: three arms are left
    assert foretold(hidden, costs, batch=4) == []
    nobody = foretold(table, costs.assign(reached=False), batch=4)
    assert [arms for _, arms, _ in nobody] == [4, 4]
