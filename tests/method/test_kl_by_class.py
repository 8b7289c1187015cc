"""CRPO's KL by class: the loss, and how a coefficient follows what a class does, by hand."""

from dataclasses import replace

import pytest
import torch

from oar.common.errors import ConfigError, DataError
from oar.method.auxiliary import KlByClass
from oar.method.auxiliary.crpo import KlState
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch


def test_the_loss_by_hand() -> None:
    given = credit_inputs(random_batch(0), AnswerMeanProbe(), keep_graph=True)
    away = torch.tensor([0.0, 0.5, -1.0, 5.0])[:, None]
    coefficients = torch.tensor([1.0, 2.0, 0.5, 1.0])
    asked = replace(given, reference_logprobs=given.scores.logprobs.detach() + away, kl_coefficients=coefficients)
    found, mask = KlByClass()(asked), given.batch.completion_mask
    # e^0.5 - 1.5, e^-1 and a token's largest
    expected = torch.tensor([0.0, 2 * 0.1487213, 0.5 * 0.3678794, 10.0])[:, None].expand(found.shape)
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-4, rtol=1e-4)
    assert (found[~mask] == 0).all()
    assert found.requires_grad
    row = torch.tensor([2])
    torch.testing.assert_close(KlByClass()(asked.rows(row))[0], found[2])
    with pytest.raises(DataError, match="classes of the problems"):
        KlByClass()(given)


def test_a_coefficient_follows_its_class() -> None:
    how = KlByClass(start=0.01, target=0.1, horizon=100)
    first = how.adapted(KlState(), "easy", 10, entropy=0.5, kl=0.3)
    # The first entropy is the average of both; a KL of three times the aim counts for an error of 0.2.
    assert (first.entropy, first.entropies) == (0.5, {"easy": 0.5})
    assert how.coefficient(first, "easy") == pytest.approx(0.01 * (1 - 0.2 * 10 / 100))
    assert how.coefficient(first, "hard") == 0.01
    second = how.adapted(first, "hard", 20, entropy=1.5, kl=0.02)
    assert second.entropy == pytest.approx(0.99 * 0.5 + 0.01 * 1.5)
    assert second.entropies == {"easy": 0.5, "hard": 1.5}
    # (0.51 / 1.5)^1.5 = 0.198, bounded to 0.5: the aim is 0.05, the error -0.6, bounded to -0.2.
    assert second.coefficients["hard"] == pytest.approx(0.01 * (1 + 0.2 * 20 / 100))
    third = how.adapted(second, "easy", 10, entropy=0.6, kl=0.09)
    own, overall = 0.95 * 0.5 + 0.05 * 0.6, 0.99 * 0.51 + 0.01 * 0.6
    error = 0.09 / (0.1 * (overall / own) ** 1.5) - 1
    assert third.coefficients["easy"] == pytest.approx(first.coefficients["easy"] * (1 - error * 10 / 100))
    assert third.coefficients["hard"] == second.coefficients["hard"]
    held = replace(how, holds=True).adapted(KlState(), "easy", 10, entropy=0.5, kl=0.3)
    assert held.coefficients["easy"] == pytest.approx(0.01 * (1 + 0.2 * 10 / 100))


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"widest": 0.5}, {"class_rate": 0.0}, {"largest_error": 2.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        KlByClass(**wrong)  # type: ignore[arg-type]
