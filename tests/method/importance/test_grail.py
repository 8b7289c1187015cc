"""GRAIL against plain forwards of the whole model with all logits, one completion after another."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oar.common.errors import ConfigError
from oar.method.importance import CreditInputs, GrailWeights
from oar.method.probes import AnswerMeanProbe
from tests.models import credit_inputs, random_batch, tiny_model

BOTH = GrailWeights(rollout_symmetry="both")
LAYERS = 5  # so that the first, the middle and the last but one are three


def inputs(seed: int = 0, *, keep_graph: bool = False, unanswered: tuple[int, ...] = ()) -> CreditInputs:
    given = credit_inputs(
        random_batch(seed, unanswered=unanswered),
        AnswerMeanProbe(),
        model=tiny_model(layers=LAYERS),
        keep_graph=keep_graph,
    )
    return replace(given, advantages=torch.tensor([0.5, 0.0, 1.0, -1.0]))


def plain_saliency(given: CreditInputs, leaf: str, shift: int) -> Tensor:
    """As the released code reads: hidden states of transformers, whole logits, autograd to one of them."""
    model, batch = given.model, given.batch
    found = torch.zeros(batch.completion_mask.shape)
    for row in range(len(batch)):
        prompt, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        ids = batch.input_ids[row, : prompt + length]
        embeddings = model.get_input_embeddings()(ids)[None].detach().requires_grad_()
        output = model(inputs_embeds=embeddings, output_hidden_states=True)
        leaves = {"embeddings": embeddings} | {
            name: output.hidden_states[at] for name, at in (("first", 1), ("middle", LAYERS // 2), ("last", LAYERS - 1))
        }
        logprobs = (output.logits[0, prompt - 1 : -1] / given.temperature).log_softmax(-1)[range(length), ids[prompt:]]
        spoken = (batch.marker_mask | batch.answer_mask)[row, :length]
        (gradient,) = torch.autograd.grad(-logprobs[spoken].sum(), leaves[leaf])
        scores = (gradient * leaves[leaf]).norm(dim=-1)[0].detach()
        found[row, :length] = scores[prompt + shift : prompt + shift + length]
    return found


def plain_weights(saliency: list[float], mean: float, spread: float, least: float, most: float) -> list[float]:
    """z-scores with population variance, clipped."""
    logs = (torch.tensor(saliency, dtype=torch.float64) + 1e-8).log()
    z = (logs - logs.mean()) / (logs.var(unbiased=False) + 1e-8).sqrt()
    return [min(max(mean + spread * float(one), least), most) for one in z]


@pytest.mark.parametrize("leaf", ["embeddings", "first", "middle", "last"])
@pytest.mark.parametrize(("leaf_shift", "shift"), [("released", -1), ("own_token", 0)])
def test_saliency_is_that_of_plain_forwards(leaf: str, leaf_shift: str, shift: int) -> None:
    given = replace(inputs(), temperature=0.7)
    for most in (2048, 1):
        found = GrailWeights(leaf=leaf, leaf_shift=leaf_shift, max_tokens_per_forward=most).saliency(given)
        torch.testing.assert_close(found, plain_saliency(given, leaf, shift), atol=1e-6, rtol=1e-4)


def test_the_forward_of_the_update_is_shared_and_left_as_it_is() -> None:
    given = inputs(keep_graph=True)
    expected = BOTH.saliency(inputs())
    torch.testing.assert_close(BOTH.saliency(given), expected, atol=1e-6, rtol=1e-4)
    given.scores.logprobs.sum().backward()  # its graph is still there, and no parameter had a gradient before
    some = inputs(keep_graph=True)
    alone = BOTH.saliency(some.rows(torch.tensor([2])))
    torch.testing.assert_close(alone[0], expected[2], atol=1e-6, rtol=1e-4)
    assert all(parameter.grad is None for parameter in some.model.parameters())


def test_weights_by_hand() -> None:
    """log saliency 0, 1, 2: mean 1, deviation sqrt(2/3)."""
    saliency, mask = torch.tensor([[1.0, torch.e, torch.e**2, 9.0]]), torch.tensor([[True, True, True, False]])
    z = 1.5**0.5
    found = GrailWeights(least=0.0)
    torch.testing.assert_close(found.standardised(saliency, mask)[0, :3], torch.tensor([1 - z / 2, 1.0, 1 + z / 2]))
    torch.testing.assert_close(
        found.standardised(saliency * 1e3, mask), found.standardised(saliency, mask), atol=1e-5, rtol=0
    )
    clipped = GrailWeights(least=0.9, most=1.1).standardised(saliency, mask)[0, :3]
    torch.testing.assert_close(clipped, torch.tensor([0.9, 1.0, 1.1]))


def test_answer_marker_and_what_follows_have_weights_of_their_own() -> None:
    given = inputs(unanswered=(2,))
    saliency, batch = plain_saliency(given, "embeddings", -1), given.batch
    settings = {"mean": 1.2, "spread": 0.7, "least": 0.3, "most": 4.0}
    found = GrailWeights(rollout_symmetry="both", **settings)(given)
    for row in (0, 1, 3):
        length = int(batch.completion_lengths[row])
        expected = plain_weights(saliency[row, :length].tolist(), **settings)
        for at in range(length):
            if batch.answer_mask[row, at]:
                expected[at] = 4.0
            elif not batch.reasoning_mask[row, at]:
                expected[at] = 1.2
        torch.testing.assert_close(found[row, :length], torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert (found[2] == 1).all(), "a completion without an answer is reweighed"


@pytest.mark.parametrize(("symmetry", "reweighed"), [("wrong", {1, 3}), ("correct", {0, 2}), ("both", {0, 1, 2, 3})])
def test_completions_that_are_left_out_keep_the_weight_of_their_answer(symmetry: str, reweighed: set[int]) -> None:
    given = inputs(3)
    batch, found = given.batch, GrailWeights(rollout_symmetry=symmetry)(given)
    for row in range(4):
        reasoning = found[row][batch.reasoning_mask[row]]
        assert (row in reweighed) == bool((reasoning != 1).any())
        assert (found[row][batch.answer_mask[row]] == 5).all()
    left_out = torch.tensor(sorted({0, 1, 2, 3} - reweighed), dtype=torch.long)
    assert torch.equal(GrailWeights(rollout_symmetry=symmetry)(given.rows(left_out)), found[left_out])  # also alone


def test_the_mass_stays_where_nothing_is_clipped_and_no_answer_is_set() -> None:
    given = inputs()
    mask = given.batch.completion_mask
    weights = GrailWeights(spread=0.1, least=0.0, most=99.0).standardised(BOTH.saliency(given), mask) * mask
    torch.testing.assert_close(weights.sum(dim=1), mask.sum(dim=1).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"leaf": "second"}, {"leaf_shift": "mine"}, {"rollout_symmetry": "all"}, {"least": 2.0}, {"most": 0.5}]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, str | float]) -> None:
    with pytest.raises(ConfigError, match=r"must be"):
        GrailWeights(**settings)
