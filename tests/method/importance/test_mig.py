"""Marginal information gains: by hand, and against whole forwards of each prefix."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError, DataError
from oar.method.auxiliary import CertifiedCloning
from oar.method.batch import collate
from oar.method.importance import CreditInputs, InformationAdvantages
from oar.method.importance.mig import information_gains, normalised, watermarked
from oar.method.probes import AnswerMeanProbe
from oar.method.segments import Segments
from tests.models import MARKER, PAD, credit_inputs

STOP = 9
# prompt, reasoning, answer, right answer; three steps, one without its stop at the end, one step alone, none at all.
ROWS = [
    ([2, 10, 11], [20, 21, STOP, 22, STOP, 23, 24, STOP], [30, 31], [30, 31]),
    ([2, 10, 11], [24, STOP, 25], [32], [30, 31]),
    ([2, 12], [26, 27, 28], [34], [35, 36, 37]),
    ([2, 12], [], [38], [35, 36, 37]),
]
STEPS = [3, 2, 1, 0]


def inputs(**changes: object) -> CreditInputs:
    texts = [[*reasoning, MARKER, *answer, 1] for _, reasoning, answer, _ in ROWS]
    borders = [Segments(len(r), len(r) + 1, len(r) + 1 + len(a)) for _, r, a, _ in ROWS]
    batch = collate(
        [row[0] for row in ROWS],
        texts,
        [[-1.0] * len(text) for text in texts],
        borders,
        [r[3] for r in ROWS],
        pad_id=PAD,
    )
    known = {
        "advantages": torch.tensor([0.5, -0.5, 1.5, -1.5]),
        "groups": torch.tensor([0, 0, 1, 1]),
        "announcement": [MARKER],
        "step_end_ids": torch.tensor([STOP]),
        "correct": torch.tensor([True, False, True, True]),
    }
    return replace(credit_inputs(batch, AnswerMeanProbe()), **(known | changes))  # type: ignore[arg-type]


SPELLINGS = [[[29], [28]], [[33, 34, 39], [5]], [], [[10]]]  # of the right answers, beside what ROWS has


def spelled(spellings: list[list[list[int]]]) -> Tensor:
    padded = torch.full((len(spellings), 2, 3), -1)
    for row, own in enumerate(spellings):
        for place, ids in enumerate(own):
            padded[row, place, : len(ids)] = torch.tensor(ids)
    return padded


@torch.no_grad()
def plain_gains(given: CreditInputs, spellings: list[list[list[int]]] | None = None) -> list[list[float]]:
    """By a whole forward for each prefix and spelling, and a loop that remembers the highest likelihood so far."""
    found = []
    for (prompt, reasoning, _, right), others in zip(ROWS, spellings or [[]] * len(ROWS), strict=True):
        ends = [at + 1 for at, token in enumerate(reasoning) if token == STOP or at + 1 == len(reasoning)]
        gains, highest = [], None
        for end in [0, *ends]:
            before, likelihood = [*prompt, *reasoning[:end], MARKER], -math.inf
            for gold in (right, *others):
                logits = given.model(torch.tensor([[*before, *gold]])).logits[0, len(before) - 1 : -1].log_softmax(-1)
                likelihood = max(likelihood, float(logits[range(len(gold)), gold].mean()))
            if highest is not None:
                gains.append(max(0.0, likelihood - highest))
            highest = likelihood if highest is None else max(highest, likelihood)
        found.append(gains)
    return found


def test_the_watermark_by_hand() -> None:
    gains = watermarked(torch.tensor([0.3, 0.5, 0.4, 0.7, 0.65]))
    torch.testing.assert_close(gains, torch.tensor([0.2, 0.0, 0.2, 0.0]))
    assert (watermarked(torch.full((5,), -1.0)) == 0).all()
    # Dips, wherever they are, earn nothing: the sum is the highest less the first.
    for likelihoods in ([-3.0, -5.0, -1.0, -4.0], [-3.0, -4.0, -5.0, -1.0], [-3.0, -1.0]):
        assert float(watermarked(torch.tensor(likelihoods)).sum()) == pytest.approx(2.0)


@pytest.mark.parametrize("max_tokens", [1, 20, 2048])
def test_gains_are_those_of_whole_forwards_of_each_prefix(max_tokens: int) -> None:
    given = inputs()
    gains, steps = information_gains(given, max_tokens)
    for row, expected in enumerate(plain_gains(given)):
        assert len(expected) == STEPS[row]
        assert gains[row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
        assert (gains[row, len(expected) :] == 0).all()
    assert (gains > 0.05).any()
    assert steps[0, :8].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert steps[1, :3].tolist() == [0, 0, 1]


def test_the_likeliest_spelling_counts() -> None:
    """Step by step another one may be the likeliest; the gain is that of the highest curve of all."""
    given = inputs(spellings=spelled(SPELLINGS))
    gains, _ = information_gains(given, 2048)
    expected, alone = plain_gains(given, SPELLINGS), plain_gains(given)
    for row, values in enumerate(expected):
        assert gains[row, : len(values)].tolist() == pytest.approx(values, abs=1e-5)
    assert expected[0] != pytest.approx(alone[0], abs=1e-2)
    assert expected[2] == alone[2]  # it has one spelling
    found = InformationAdvantages(spellings=True)(given)
    assert not torch.allclose(found, InformationAdvantages()(inputs()))
    with pytest.raises(DataError, match="other spellings"):
        InformationAdvantages(spellings=True)(inputs())


def compared(values: list[float]) -> Tensor:
    one = torch.tensor(values)
    return (one - one.mean()) / (one.std() + 1e-4)


def test_as_published_a_completion_has_one_number_on_its_reasoning() -> None:
    given = inputs()
    plain = plain_gains(given)
    found, advantages = InformationAdvantages(2.0, 3.0)(given), given.known_advantages()
    shares = torch.cat([compared([sum(plain[0]), sum(plain[1])]), compared([sum(plain[2]), sum(plain[3])])])
    mask, reasoning = given.batch.completion_mask, given.batch.reasoning_mask
    for row in range(4):
        factor = float(mask[row].sum() / reasoning[row].sum()) if reasoning[row].any() else 0.0
        inside = 2 * advantages[row] + 3 * shares[row] * factor
        expected = torch.where(reasoning[row], inside, 2 * advantages[row])
        torch.testing.assert_close(found[row][mask[row]], expected[mask[row]], atol=1e-3, rtol=1e-3)
    # The mean over all tokens of what is added is the mean over reasoning tokens of the published loss.
    added = (found - 2 * advantages[:, None])[0][mask[0]].mean()
    torch.testing.assert_close(added, 3 * shares[0], atol=1e-3, rtol=1e-3)


def test_by_step_each_has_its_own() -> None:
    given = inputs()
    plain = plain_gains(given)
    found = InformationAdvantages(1.0, 1.0, by_step=True)(given) - given.known_advantages()[:, None]
    first = compared([*plain[0], *plain[1]])
    expected = [first[[0, 0, 0, 1, 1, 2, 2, 2]], first[[3, 3, 4]], torch.zeros(3)]  # a step alone in its group
    for row, values in enumerate(expected):
        torch.testing.assert_close(found[row, : len(values)], values, atol=1e-3, rtol=1e-3)
        assert (found[row, len(values) :].abs() < 1e-6).all()
    assert (found[3].abs() < 1e-6).all()


def test_groups_are_compared_each_on_its_own() -> None:
    values, groups = torch.tensor([1.0, 3.0, 5.0, 7.0, 7.0]), torch.tensor([4, 4, 2, 9, 9])
    found = normalised(values, groups)
    torch.testing.assert_close(found, torch.tensor([-0.7071, 0.7071, 0.0, 0.0, 0.0]), atol=1e-3, rtol=0)


def test_a_completion_without_an_answer_span_gains_nothing() -> None:
    given = inputs()
    none = torch.zeros_like(given.batch.reasoning_mask)
    blank = replace(given.batch, reasoning_mask=none, marker_mask=none, answer_mask=none)
    gains, _ = information_gains(replace(given, batch=blank), 2048)
    assert (gains == 0).all()
    assert torch.equal(
        InformationAdvantages()(replace(given, batch=blank)),
        given.known_advantages()[:, None].expand(given.batch.completion_mask.shape),
    )


def test_cloning_by_the_second_gate() -> None:
    given = inputs()
    sums = [sum(gains) for gains in plain_gains(given)]
    assert sums[0] == 0 < sums[2]  # both are right: one gate each
    found = CertifiedCloning(0.5, gate="mig_positive")(given)
    for row, gained in enumerate(sums):
        certified = gained > 0 and row != 1
        expected = -0.5 * given.scores.logprobs[row] if certified else torch.zeros(len(found[row]))
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("missing", [{"announcement": ()}, {"step_end_ids": None}])
def test_what_is_missing_is_said(missing: dict[str, object]) -> None:
    with pytest.raises(DataError, match="one is not known"):
        InformationAdvantages()(inputs(**missing))
    with pytest.raises(ConfigError, match="outcome and gain"):
        InformationAdvantages(gain=-1.0)
