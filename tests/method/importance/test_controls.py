"""The controls: values by hand, and what makes each of them the control it claims to be."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import DataError
from oar.method.forward.logprobs import Scores
from oar.method.gating import bilevel_weights
from oar.method.importance import (
    CreditInputs,
    EntropyImportance,
    InvertedImportance,
    MarkedImportance,
    PositionImportance,
    RandomImportance,
    ShuffledImportance,
    UniformImportance,
)
from oar.method.probes import AnswerMeanProbe
from tests.models import random_batch, tiny_model

PAPER = {"tau": 0.4, "beta": 2.0, "floor": 0.1, "threshold": "quantile"}


@dataclass(frozen=True)
class Fixed:
    """Stands for OAR: heavy-tailed importance that follows the tokens, whatever batch they are in."""

    scale: float = 1.0

    def __call__(self, inputs: CreditInputs) -> Tensor:
        ids = inputs.batch.completion_ids.double()
        importance = self.scale * (6 * (ids * 12.9898).sin()).exp()
        return (importance * inputs.batch.reasoning_mask).float()


CONTROLS = {
    "uniform": UniformImportance(),
    "entropy": EntropyImportance(),
    "random": RandomImportance(),
    "position": PositionImportance(),
    "shuffled": ShuffledImportance(Fixed()),
    "inverted": InvertedImportance(Fixed()),
    "causal": MarkedImportance("causal"),
}


def inputs(seed=0, rows=4, longest=12):
    batch = random_batch(seed, rows=rows, longest=longest)
    chance = torch.Generator().manual_seed(seed)
    entropy = torch.rand(batch.completion_mask.shape, generator=chance) * batch.completion_mask
    marks = {"causal": torch.rand(batch.completion_mask.shape, generator=chance) < 0.5}
    scores = Scores(-entropy, entropy)
    return CreditInputs(tiny_model(), batch, AnswerMeanProbe(), scores, range(1000, 1000 + rows), marks)


def emptied(given, row):
    """`given` with a completion that has no reasoning tokens."""
    mask = given.batch.reasoning_mask.clone()
    mask[row] = False
    return replace(given, batch=replace(given.batch, reasoning_mask=mask))


def scores_of(importance, mask):
    """The gate's s (docs/METHOD.md §5) of one completion, in float64."""
    s = importance[mask].double().log1p()
    return (s - s.min()) / (s.max() - s.min())


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize("seed", range(3))
def test_what_every_control_promises(name, seed):
    given = emptied(inputs(seed), 1)
    mask = given.batch.reasoning_mask
    importance = CONTROLS[name](given)
    assert importance.shape == mask.shape
    assert importance.dtype == torch.float32
    assert not importance.requires_grad
    assert torch.isfinite(importance).all()
    assert (importance >= 0).all()
    assert (importance[~mask] == 0).all()
    assert (importance[mask] > 0).any()


@pytest.mark.parametrize("name", CONTROLS)
def test_a_completion_gets_the_same_in_any_batch_and_whatever_was_drawn_before(name):
    given = inputs()
    whole = CONTROLS[name](given)
    index = torch.tensor([2, 0])
    torch.rand(7)
    part = CONTROLS[name](given.rows(index))
    assert torch.equal(part, whole[index])


@pytest.mark.parametrize("name", ["random", "shuffled"])
def test_chance_follows_the_seed_of_the_completion(name):
    given = inputs(longest=30)
    other = replace(given, seeds=[given.seeds[0], *(seed + 1 for seed in given.seeds[1:])])
    one, two = CONTROLS[name](given), CONTROLS[name](other)
    assert torch.equal(one[0], two[0])
    assert not torch.equal(one[1:], two[1:])


def test_completions_draw_apart():
    """The same completion twice: only the seeds differ."""
    given = inputs(longest=30).rows(torch.tensor([1, 1]))
    given = replace(given, seeds=[1, 2])
    assert given.batch.reasoning_mask[0].sum() > 4
    for name in ("random", "shuffled"):
        importance = CONTROLS[name](given)
        assert not torch.equal(importance[0], importance[1])


def test_position_by_hand():
    given = inputs()
    mask = torch.zeros_like(given.batch.reasoning_mask)
    mask[0, :4], mask[1, :1], mask[2, 1:3] = True, True, True
    importance = PositionImportance()(replace(given, batch=replace(given.batch, reasoning_mask=mask)))
    assert importance[0, :5].tolist() == [0.25, 0.5, 0.75, 1.0, 0.0]
    assert importance[1, :2].tolist() == [1.0, 0.0]
    assert importance[2, :4].tolist() == [0.0, 0.5, 1.0, 0.0]
    assert importance[3].tolist() == [0.0] * mask.shape[1]


def test_entropy_is_the_policys():
    given = inputs()
    mask = given.batch.reasoning_mask
    assert torch.equal(EntropyImportance()(given)[mask], given.scores.entropy[mask])


@pytest.mark.parametrize("seed", range(3))
def test_shuffled_weights_are_the_estimators_own_on_other_tokens(seed):
    given = inputs(seed, longest=40)
    mask = given.batch.reasoning_mask
    own, shuffled = Fixed()(given), ShuffledImportance(Fixed())(given)
    weights, moved = (bilevel_weights(importance, mask, **PAPER) for importance in (own, shuffled))
    for row in range(len(mask)):
        assert torch.equal(own[row][mask[row]].sort().values, shuffled[row][mask[row]].sort().values)
        torch.testing.assert_close(weights[row][mask[row]].sort().values, moved[row][mask[row]].sort().values)
    assert not torch.equal(own, shuffled)


def test_shuffled_goes_to_every_place_alike():
    """Where the largest value lands, over many seeds: no place is missed and none preferred."""
    given = inputs(longest=8)
    row = int((given.batch.reasoning_mask.sum(dim=1) >= 4).nonzero()[0])
    many = replace(given.rows(torch.full((4000,), row)), seeds=range(4000))
    count = int(many.batch.reasoning_mask[0].sum())
    places = ShuffledImportance(Fixed())(many)[:, :count].argmax(dim=1).bincount(minlength=count)
    assert len(places) == count
    assert ((places / 4000 - 1 / count).abs() < 0.04).all()


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 100.0])
def test_inverted_score_is_one_minus_the_score(scale):
    given = inputs(1, longest=30)
    mask = given.batch.reasoning_mask
    own, inverted = Fixed(scale)(given), InvertedImportance(Fixed(scale))(given)
    for row in range(len(mask)):
        if mask[row].sum() > 1:
            found, expected = scores_of(inverted[row], mask[row]), 1 - scores_of(own[row], mask[row])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    # the scale is kept: inverting twice is the estimator again
    again = InvertedImportance(InvertedImportance(Fixed(scale)))(given)
    torch.testing.assert_close(again, own, rtol=1e-3, atol=1e-6 * float(own.max()))


def test_inverted_by_hand():
    given = inputs()
    mask = torch.zeros_like(given.batch.reasoning_mask)
    mask[0, :3] = True
    given = replace(given, batch=replace(given.batch, reasoning_mask=mask))
    own = torch.zeros(mask.shape)
    own[0, :3] = torch.expm1(torch.tensor([0.2, 0.5, 1.0]))
    inverted = InvertedImportance(lambda _: own)(given)
    torch.testing.assert_close(inverted[0, :3], torch.expm1(torch.tensor([1.0, 0.7, 0.2])))


def test_nan_of_the_inner_estimator_is_not_hidden():
    given = inputs()
    mask = given.batch.reasoning_mask
    own = Fixed()(given)
    own[2, 0] = torch.nan
    for control in (ShuffledImportance, InvertedImportance):
        with pytest.raises(DataError, match="row 2"):
            bilevel_weights(control(lambda _: own)(given), mask, **PAPER)


def test_marked_is_one_on_marked_reasoning_only():
    given = inputs()
    marked = given.marks["causal"]
    mask = given.batch.reasoning_mask
    importance = MarkedImportance("causal")(given)
    assert (marked & ~mask).any()  # there are marks it must leave out
    assert torch.equal(importance == 1, marked & mask)
    assert torch.equal(importance == 0, ~(marked & mask))


def test_a_completion_without_any_mark_keeps_weight_one():
    given = inputs()
    marks = {"error": torch.zeros_like(given.marks["causal"])}
    importance = MarkedImportance("error")(replace(given, marks=marks))
    weights = bilevel_weights(importance, given.batch.reasoning_mask, **PAPER)
    assert torch.equal(weights, torch.ones_like(weights))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "no marks"),
        ({"causal": torch.zeros(1, dtype=torch.bool)}, "causal"),
        ({"error": torch.ones(1, dtype=torch.int64)}, "no marks"),  # token ids say not what is marked
    ],
)
def test_missing_marks_are_an_error_of_one_sentence(known, said):
    with pytest.raises(DataError, match=f"'error'.*{said}") as caught:
        MarkedImportance("error")(replace(inputs(), marks=known))
    assert "\n" not in str(caught.value)
