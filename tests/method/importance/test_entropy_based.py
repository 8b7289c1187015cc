"""The 80/20 mask and the entropy bonus, by hand and as the composition uses them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.credit import Credit, CreditAssigner
from oar.method.gating import weight_metrics
from oar.method.importance import CreditInputs, EntropyBonusWeights, HighEntropyWeights
from oar.method.importance.base import CreditSignal
from oar.method.probes import AnswerMeanProbe
from tests.method.test_credit import GATE
from tests.models import credit_inputs, random_batch

ADVANTAGES = torch.tensor([0.5, -2.0, 0.0, -0.1])


def inputs(seed: int = 0, advantages: Tensor = ADVANTAGES) -> CreditInputs:
    given = credit_inputs(random_batch(seed, unanswered=(1,)), AnswerMeanProbe())
    return replace(given, advantages=advantages)


def credit(signal: CreditSignal, given: CreditInputs, *, preserve_mass: bool = False) -> Credit:
    return CreditAssigner(signal, GATE, given.probe, preserve_mass=preserve_mass).assign(given)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_tokens_of_high_entropy_are_those_above_the_quantile_of_the_whole_batch(share: float) -> None:
    given = inputs()
    mask, entropy = given.batch.completion_mask, given.scores.entropy
    expected = mask & (entropy >= torch.quantile(entropy[mask], 1 - share))
    found = HighEntropyWeights(share)(given)
    assert torch.equal(found, expected.float())
    assert abs(int(found.sum()) - share * int(mask.sum())) <= 1
    beyond = replace(given, scores=replace(given.scores, entropy=entropy.masked_fill(~mask, 9.0)))
    assert torch.equal(HighEntropyWeights(share)(beyond), found)
    kept = HighEntropyWeights(share, denominator="kept")(given)
    torch.testing.assert_close(kept, expected * mask.sum() / expected.sum())
    torch.testing.assert_close(
        kept[mask].mean(), torch.tensor(1.0)
    )  # so that a mean over all tokens is one over the kept


def test_the_threshold_counts_completions_without_an_advantage() -> None:
    given = inputs()
    found = credit(HighEntropyWeights(), given)
    assert torch.equal(found.token_weights, HighEntropyWeights()(given))
    rows = torch.tensor([0, 1, 3])
    assert not torch.equal(HighEntropyWeights()(given.rows(rows)), found.token_weights[rows])


def test_a_completion_without_any_kept_token_has_no_loss_and_breaks_nothing() -> None:
    given = inputs()
    entropy = given.scores.entropy.clone()
    entropy[0] = 0.0
    given = replace(given, scores=replace(given.scores, entropy=entropy))
    found = credit(HighEntropyWeights(), given, preserve_mass=True).token_weights
    mask = given.batch.completion_mask
    assert (found[0][mask[0]] == 0).all()
    for row in (1, 2, 3):
        assert float(found[row][mask[row]].sum()) in (0.0, pytest.approx(float(mask[row].sum())))
    metrics = weight_metrics(found[:1], given.batch.reasoning_mask[:1])
    assert metrics["ess_ratio"] == metrics["mass"] == 0.0


def test_the_bonus_is_added_to_the_advantage_and_never_turns_it() -> None:
    given = inputs()
    given.scores.entropy[2, 0] = 0.0  # where there is no advantage either
    found = credit(EntropyBonusWeights(strength=0.1, bound=2.0), given).token_advantages
    entropy, mask = given.scores.entropy, given.batch.completion_mask
    for row, advantage in enumerate(ADVANTAGES.tolist()):
        for at in mask[row].nonzero()[:, 0].tolist():
            expected = advantage + min(0.1 * float(entropy[row, at]), abs(advantage) / 2)
            assert float(found[row, at]) == pytest.approx(expected, abs=1e-6)
            assert expected * advantage > 0 or advantage == 0
    capped = 0.1 * entropy[mask] > (ADVANTAGES.abs() / 2)[:, None].expand_as(entropy)[mask]
    assert 0 < int(capped.sum()) < len(capped)
    assert (EntropyBonusWeights()(given)[2] == 1).all()


def test_without_strength_it_is_grpo() -> None:
    given = inputs()
    found = credit(EntropyBonusWeights(strength=0.0), given).token_advantages
    assert torch.equal(found, ADVANTAGES[:, None].expand_as(found))


@pytest.mark.parametrize(
    ("signal", "settings"),
    [
        (HighEntropyWeights, {"share": 0.0}),
        (HighEntropyWeights, {"share": 1.5}),
        (HighEntropyWeights, {"denominator": "most"}),
        (EntropyBonusWeights, {"strength": -1.0}),
        (EntropyBonusWeights, {"bound": 0.5}),
    ],
)
def test_settings_that_cannot_be_are_refused(signal: type, settings: dict[str, str | float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        signal(**settings)
