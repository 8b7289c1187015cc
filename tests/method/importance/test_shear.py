"""SHEAR against loops over spans, with a Sinkhorn of plain products, and where the distance is known."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.credit import CreditAssigner
from oar.method.importance import CreditInputs, ShearWeights
from oar.method.importance import shear as shear_module
from oar.method.importance.shear import span_starts
from oar.method.probes import AnswerMeanProbe
from tests.method.test_credit import GATE
from tests.models import credit_inputs, random_batch, tiny_model

SMALL = ShearWeights(window=4, stride=2)
ADVANTAGES = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 0.5, -0.5, -0.5])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])


def inputs(rows: int = 9) -> CreditInputs:
    model = tiny_model()
    torch.nn.init.uniform_(model.model.norm.weight, 0.2, 3.0)  # as trained: states are not all of one length
    given = credit_inputs(random_batch(0, rows=9, longest=14, unanswered=(6,)), AnswerMeanProbe(), model=model)
    return replace(given, advantages=ADVANTAGES, groups=GROUPS).rows(torch.arange(rows))


def states_of(given: CreditInputs) -> list[Tensor]:
    """Last hidden states by plain forwards."""
    batch, found = given.batch, []
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        with torch.no_grad():
            found.append(
                given.model.base_model(batch.input_ids[None, row, : prompt + length]).last_hidden_state[0, prompt:]
            )
    return found


def plain_sinkhorn(one: Tensor, other: Tensor, share: float, iterations: int) -> float:
    """Scalings u and v of the kernel, in float64."""
    cost = torch.cdist(one.double(), other.double(), compute_mode="donot_use_mm_for_euclid_dist")
    mass, other_mass = (
        torch.full((len(one),), 1 / len(one)).double(),
        torch.full((len(other),), 1 / len(other)).double(),
    )
    kernel, column = (-cost / (share * cost.mean())).exp(), torch.ones(len(other)).double()
    for _ in range(iterations):
        row = mass / (kernel @ column)
        column = other_mass / (kernel.T @ row)
    return float((row[:, None] * kernel * column * cost).sum())


def plain_chamfer(one: Tensor, other: Tensor) -> float:
    there = [min(float((a - b).norm()) for b in other) for a in one]
    back = [min(float((a - b).norm()) for a in one) for b in other]
    return (sum(there) / len(there) + sum(back) / len(back)) / 2


def plain_mmd(one: Tensor, other: Tensor, width: float) -> float:
    """By loops over pairs of states, in float64."""

    def kernel(some: Tensor, others: Tensor) -> float:
        found = [math.exp(-float((a - b).double().square().sum()) / (2 * width**2)) for a in some for b in others]
        return sum(found) / len(found)

    return width * math.sqrt(max(0.0, kernel(one, one) + kernel(other, other) - 2 * kernel(one, other)))


def plain_width(states: dict[int, Tensor], advantages: list[float]) -> float:
    """The mean over pairs of a right and a wrong completion of the mean distance of their states."""
    right, wrong = ([at for at in states if sign * advantages[at] > 0] for sign in (1, -1))
    means = [
        sum(float((a - b).norm()) for a in states[one] for b in states[other]) / len(states[one]) / len(states[other])
        for one in right
        for other in wrong
    ]
    return sum(means) / len(means)


def plain(given: CreditInputs, signal: ShearWeights) -> Tensor:
    """Weights by the definition, span by span."""
    states, advantages = states_of(given), given.known_advantages().tolist()
    weights = torch.ones(given.batch.completion_mask.shape)
    for row in range(len(states)):
        group = [other for other in range(len(states)) if GROUPS[other] == GROUPS[row]]
        opposing = [other for other in group if advantages[other] * advantages[row] < 0]
        if not opposing:
            continue
        spans = {at: states[at][: length_of(given, at, signal)] for at in group}
        cut = {
            at: [kept[start : start + signal.window] for start in span_starts(len(kept), signal.window, signal.stride)]
            for at, kept in spans.items()
        }
        norms = torch.cat([states[at].norm(dim=1) for at in group]).mean()
        distance = [0.0] * len(spans[row])
        for start, span in zip(span_starts(len(spans[row]), signal.window, signal.stride), cut[row], strict=True):
            candidates = [against for other in opposing for against in cut[other]]
            if signal.distance == "chamfer":
                least = min(plain_chamfer(span, against) for against in candidates)
            elif signal.distance == "mmd":
                width = plain_width(spans, advantages)
                least = min(plain_mmd(span, against, width) for against in candidates)
            else:
                least = min(plain_sinkhorn(span, against, signal.epsilon, signal.iterations) for against in candidates)
            for at in range(start, min(start + signal.window, len(distance))):
                distance[at] = max(distance[at], least)
        scale = float(norms) if signal.normalise == "global_norm" else sum(distance) / len(distance)
        weights[row, : len(distance)] = torch.tensor(distance) / scale
    return weights


def length_of(given: CreditInputs, row: int, signal: ShearWeights) -> int:
    if signal.exclude_answer and given.batch.has_answer[row]:
        return int(given.batch.reasoning_mask[row].sum())
    return int(given.batch.completion_lengths[row])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"distance": "chamfer"},
        {"distance": "mmd"},
        {"distance": "mmd", "window": 5, "stride": 1, "exclude_answer": True},
        {"normalise": "per_rollout_mean1"},
        {"exclude_answer": True},
        {"window": 100, "stride": 25},
        {"window": 3, "stride": 3, "epsilon": 0.2, "iterations": 7},
    ],
    ids=str,
)
def test_weights_are_those_of_the_definition(changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    given, signal = inputs(), replace(SMALL, **changes)  # type: ignore[arg-type]
    expected = plain(given, signal)
    mask = given.batch.completion_mask
    torch.testing.assert_close((signal(given) * mask), expected * mask, atol=1e-4, rtol=1e-4)
    assert float(expected[0].std()) > 0
    monkeypatch.setattr(shear_module, "BLOCK", 1)
    few = replace(signal, max_tokens_per_forward=1)
    torch.testing.assert_close(few(given) * mask, expected * mask, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("count", "window", "stride", "expected"),
    [
        (3, 4, 2, [0]),
        (4, 4, 2, [0]),
        (5, 4, 2, [0, 2]),
        (6, 4, 2, [0, 2]),
        (7, 4, 2, [0, 2, 4]),
        (250, 100, 25, [0, 25, 50, 75, 100, 125, 150]),
        (0, 4, 2, []),
    ],
)
def test_spans_are_the_fewest_that_cover_a_completion(
    count: int, window: int, stride: int, expected: list[int]
) -> None:
    assert list(span_starts(count, window, stride)) == expected


@pytest.mark.parametrize("distance", ["sinkhorn", "chamfer"])
def test_distances_that_are_known(distance: str) -> None:
    signal = ShearWeights(distance=distance, epsilon=0.002, iterations=500)
    states = 10 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert float(signal.span_distances(states, states)) < 1e-2
    shift = torch.full((5,), 0.3)
    assert float(signal.span_distances(states, states + shift)) == pytest.approx(float(shift.norm()), rel=1e-2)
    one = states[:1].repeat(3, 1)
    assert float(signal.span_distances(one, one)) == 0.0  # no cost at all


def test_mmd_where_it_is_known() -> None:
    signal = ShearWeights(distance="mmd")
    states = 10 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    shift = torch.full((5,), 0.3)
    for width in (1.0, 20.0):
        same = signal.mmd_distances(states, states, torch.tensor(width))
        assert float(same) < 1e-3 * width
        # Two states: the kernel is 1 within each, so MMD^2 = 2 - 2 k.
        one, other = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
        kernel = math.exp(-25 / (2 * width**2))
        expected = width * math.sqrt(2 - 2 * kernel)
        assert float(signal.mmd_distances(one, other, torch.tensor(width))) == pytest.approx(expected, rel=1e-5)
    # A kernel that is wide beside the states sees their means alone.
    wide = signal.mmd_distances(states, states + shift, torch.tensor(300.0))
    assert float(wide) == pytest.approx(float(shift.norm()), rel=0.05)
    assert float(signal.mmd_distances(states, states, torch.tensor(0.0))) == 0.0


def test_a_larger_epsilon_keeps_equal_spans_apart() -> None:
    states = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    assert float(ShearWeights(epsilon=0.5).span_distances(states, states)) > 0.1


def test_only_mixed_groups_are_reweighed_and_none_sees_another() -> None:
    given = inputs()
    weights = CreditAssigner(SMALL, GATE, given.probe).assign(given).token_weights
    assert (weights[4:6] == 1).all()
    first = torch.arange(4)
    alone = SMALL(given.rows(first))
    torch.testing.assert_close(alone, weights[:4], atol=1e-5, rtol=1e-5)
    one_sided = replace(given, advantages=ADVANTAGES.abs())
    assert (SMALL(one_sided) == 1).all()
    with pytest.raises(DataError, match="without their groups"):
        SMALL(replace(given, groups=None))


def test_a_completion_that_the_other_outcome_has_as_well_weighs_one() -> None:
    twice = replace(inputs().rows(torch.tensor([0, 0])), advantages=torch.tensor([1.0, -1.0]))
    assert (replace(SMALL, distance="chamfer", normalise="per_rollout_mean1")(twice) == 1).all()


def test_a_mean_of_one_keeps_the_mass() -> None:
    given = inputs(4)
    mask = given.batch.completion_mask
    weights = replace(SMALL, normalise="per_rollout_mean1")(given) * mask
    torch.testing.assert_close(weights.sum(dim=1), mask.sum(dim=1).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{"stride": 0}, {"window": 3, "stride": 4}, {"distance": "cosine"}, {"normalise": "none"}, {"epsilon": 0.0}],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ShearWeights(**settings)  # type: ignore[arg-type]
