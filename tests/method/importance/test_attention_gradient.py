"""The attention knock-out to first order against finite differences of an attention written here."""

from dataclasses import replace

import pytest
import torch
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM

from oar.learner.sharding import recomputed_layers
from oar.method.importance import (
    AttentionGradientDrop,
    AttentionGradientImportance,
    GradientNormImportance,
    PerturbationImportance,
)
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe
from oar.statistics.attribution import spearman
from tests.method.importance.test_gradient import Completion
from tests.models import MARKER, credit_inputs, random_batch, tiny_model

PROBES = {"lt_logits": LastTokenProbe([MARKER]), "as_mean": AnswerMeanProbe(), "as_joint": AnswerJointProbe()}


def partly_removed(share, token, places):
    """Attention in which queries `places` (layer, position) go `share` of the way to not seeing `token`."""

    def attend(module, query, key, value, mask, *, scaling, **_):
        heads, length = query.shape[1], query.shape[2]
        key, value = (states.repeat_interleave(heads // states.shape[1], dim=1) for states in (key, value))
        scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~torch.ones(length, length).tril().bool(), -1e9)
        output = scores.softmax(-1) @ value
        for layer, position in places:
            if layer == module.layer_idx and position > token:
                without = scores[:, :, position].index_fill(2, torch.tensor([token]), -1e9).softmax(-1)
                rest = (without[:, :, None] @ value)[:, :, 0]
                output = output.clone()
                output[:, :, position] += share * (rest - output[:, :, position])
        return output.transpose(1, 2), None

    return attend


def slope(completion, token, places, log_likelihood):
    """The derivative of the log-likelihood at a share of 0."""
    values = []
    for share in (1e-3, -1e-3):
        AttentionInterface.register("partly_removed", partly_removed(share, token, places))
        completion.model.config._attn_implementation = "partly_removed"
        values.append(log_likelihood(completion.outcome(completion.embeds)))
    completion.model.config._attn_implementation = "sdpa"
    return (values[0] - values[1]) / 2e-3


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_importance_equals_finite_differences(name, keep_graph):
    """One place at a time, squared and summed: a missing layer, head, position or key shows."""
    model, batch = tiny_model(1).double(), random_batch(3, rows=2, longest=4)
    found = AttentionGradientImportance()(credit_inputs(batch, PROBES[name], model=model, keep_graph=keep_graph))
    for row in range(2):
        completion = Completion(model, batch, row, name)
        top = completion.outcome(completion.embeds).argmax()

        def log_likelihood(outcome, top=top):
            return float(outcome if name == "as_joint" else outcome[top])

        for t in range(completion.count):
            at = completion.start + t
            places = [(layer, position) for layer in range(2) for position in range(at + 1, len(completion.ids))]
            expected = sum(slope(completion, at, [place], log_likelihood) ** 2 for place in places)
            # logits are read in float32, hence the tolerance
            assert float(found[row, t]) == pytest.approx(expected, rel=2e-2, abs=1e-6)


def test_the_drop_equals_the_derivative_of_removing_it_everywhere_at_once():
    model, batch = tiny_model(1).double(), random_batch(3, rows=2, longest=4)
    gold = torch.tensor([[7, 8], [9, 0]])
    batch = replace(batch, gold_ids=gold, gold_mask=gold > 0)
    found = AttentionGradientDrop()(credit_inputs(batch, PROBES["as_mean"], model=model))
    for row, answer in enumerate(([7, 8], [9])):
        completion = Completion(model, batch, row, "as_joint")
        kept = completion.ids[: len(completion.ids) - len(completion.answer)]
        completion.ids, completion.answer = [*kept, *answer], answer
        completion.embeds = model.get_input_embeddings()(torch.tensor([completion.ids])).detach()
        for t in range(completion.count):
            at = completion.start + t
            places = [(layer, position) for layer in range(2) for position in range(at + 1, len(completion.ids))]
            derivative = slope(completion, at, places, float) * len(answer)  # `outcome` is a mean over the answer
            assert float(found[row, t]) == pytest.approx(-derivative, rel=2e-2, abs=1e-4)


def test_a_bounded_drop_of_one_token_is_its_probability_times_that_in_nats():
    """Since dp = p d(log p)."""
    model, batch = tiny_model(1).double(), random_batch(3, rows=2, longest=4)
    batch = replace(batch, gold_ids=torch.tensor([[7], [9]]), gold_mask=torch.ones(2, 1, dtype=torch.bool))
    inputs = credit_inputs(batch, PROBES["as_mean"], model=model)
    nats, tokens = AttentionGradientDrop()(inputs), AttentionGradientDrop(bounded=True)(inputs)
    for row, answer in enumerate((7, 9)):
        own = Completion(model, batch, row, "as_joint")
        before = torch.tensor([own.ids[: len(own.ids) - len(own.answer)]])
        probability = model(before).logits[0, -1].softmax(-1)[answer]
        torch.testing.assert_close(tokens[row], nats[row] * float(probability.detach()), atol=1e-7, rtol=1e-3)


@pytest.mark.parametrize("estimator", [AttentionGradientImportance, AttentionGradientDrop])
def test_chunks_sharing_and_checkpoints_do_not_matter(estimator):
    """Neither do blocks of queries, other rows, their padding and their prompt, nor layers that are run again."""
    batch = random_batch(4, rows=5, group=3)
    batch = replace(batch, gold_ids=torch.full((5, 1), 9), gold_mask=torch.ones(5, 1, dtype=torch.bool))
    inputs = credit_inputs(batch, PROBES["as_mean"])
    expected = estimator()(inputs)
    assert (expected[batch.reasoning_mask] != 0).all()
    assert (expected[~batch.reasoning_mask] == 0).all()
    close = {"atol": 1e-7, "rtol": 1e-3}
    torch.testing.assert_close(estimator(max_tokens_per_forward=1)(inputs), expected, **close)
    subset = torch.tensor([3, 1])
    torch.testing.assert_close(estimator()(inputs.rows(subset)), expected[subset], **close)
    model = tiny_model()
    for checkpointed in (False, True):
        with recomputed_layers(model, checkpointed):
            shared = credit_inputs(batch, PROBES["as_mean"], model=model, keep_graph=True)
            torch.testing.assert_close(estimator()(shared), expected, **close)
            shared.scores.logprobs.sum().backward()  # the update's graph is still whole


def test_a_window_hides_what_lies_behind_it():
    """Of a model whose queries see two tokens, a token's only later position is the next one: the others have no effect on it."""
    config = tiny_model(layers=1).config.to_dict()
    config |= {"use_sliding_window": True, "sliding_window": 2, "layer_types": ["sliding_attention"]}
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**config)).eval()
    batch = random_batch(3, rows=2, longest=8)
    found = AttentionGradientImportance()(credit_inputs(batch, PROBES["lt_logits"], model=model))
    last = batch.reasoning_mask.sum(dim=1) - 1
    for row in range(2):
        assert float(found[row, last[row]]) > 0  # the marker behind it, where the outcome is read
        assert (found[row, : last[row]] == 0).all()


def test_it_ranks_tokens_more_like_the_knock_out_than_the_gradient_norm_does():
    """The point of it, on a random model whose attention is sharp."""
    torch.manual_seed(0)
    batch, model = random_batch(0, rows=8, longest=24), tiny_model(2, layers=4)
    inputs = credit_inputs(batch, PROBES["as_mean"], model=model)
    exact = PerturbationImportance(counterfactual="knockout")(inputs)

    def agreement(found):
        pairs = zip(found, exact, batch.reasoning_mask, strict=True)
        return sum(spearman(one[mask].numpy(), other[mask].numpy()) for one, other, mask in pairs if mask.sum() > 3)

    assert agreement(AttentionGradientImportance()(inputs)) > agreement(GradientNormImportance()(inputs))
