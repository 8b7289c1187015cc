"""OAR-P against a naive version written here, OAR-G against finite differences, and what no estimator may do."""

import pytest
import torch
from torch import Tensor

from oar.importance import (
    CreditInputs,
    EntropyImportance,
    GradientImportance,
    PerturbationImportance,
    RandomImportance,
    UniformImportance,
)
from oar.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe
from tests.models import MARKER, PAD, random_batch, tiny_model

PROBES = {"lt_logits": LastTokenProbe([MARKER]), "as_mean": AnswerMeanProbe(), "as_joint": AnswerJointProbe()}
ESTIMATORS = {
    "oar_p": PerturbationImportance(max_tokens_per_forward=256),
    "oar_g": GradientImportance(noise_std=1e-3, max_tokens_per_forward=256),
    "entropy": EntropyImportance(),
    "random": RandomImportance(),
    "uniform": UniformImportance(),
}


def inputs(batch, probe, *, model=None, seed=0):
    entropy = torch.rand(batch.completion_mask.shape, generator=torch.Generator().manual_seed(5))
    return CreditInputs(model or tiny_model(), batch, probe, entropy, torch.Generator().manual_seed(seed))


def parts(batch, row):
    """A completion taken apart: prompt, reasoning, marker, answer as lists of ids."""
    prompt = batch.input_ids[row, : int(batch.prompt_lengths[row])].tolist()
    completion = batch.completion_ids[row]
    masks = (batch.reasoning_mask, batch.marker_mask, batch.answer_mask)
    return prompt, *(completion[mask[row]].tolist() for mask in masks)


def outcome(model, name, prompt, reasoning, marker, answer) -> Tensor:
    """The probe's outcome on one unpadded sequence, straight from docs/METHOD.md §3."""
    with torch.no_grad():
        if name == "lt_logits":
            return model(torch.tensor([[*prompt, *reasoning, MARKER]])).logits[0, -1].log_softmax(-1)
        start = len(prompt) + len(reasoning) + len(marker)
        logits = model(torch.tensor([[*prompt, *reasoning, *marker, *answer]])).logits[0]
        predicting = logits[start - 1 : start - 1 + len(answer)]
        if name == "as_mean":
            return predicting.mean(0).log_softmax(-1)
        return predicting.log_softmax(-1)[range(len(answer)), answer].mean()


def naive_oar_p(model, batch, name) -> Tensor:
    """One masked token, one forward, one completion at a time."""
    importance = torch.zeros(batch.reasoning_mask.shape)
    for row in range(len(batch)):
        prompt, reasoning, marker, answer = parts(batch, row)
        clean = outcome(model, name, prompt, reasoning, marker, answer)
        for t in range(len(reasoning)):
            masked = [*reasoning[:t], PAD, *reasoning[t + 1 :]]
            changed = outcome(model, name, prompt, masked, marker, answer)
            moved = clean - changed if name == "as_joint" else (clean.exp() * (clean - changed)).sum()
            importance[row, t] = max(float(moved), 0.0)
    return importance


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("seed", range(3))
def test_oar_p_equals_naive(name, seed):
    model, batch = tiny_model(seed), random_batch(seed, rows=4)
    importance = PerturbationImportance(max_tokens_per_forward=100)(inputs(batch, PROBES[name], model=model))
    torch.testing.assert_close(importance, naive_oar_p(model, batch, name), atol=1e-5, rtol=1e-4)
    assert float(importance.max()) > 1e-3  # the models are not so dull that zeros would pass


@pytest.mark.parametrize("name", PROBES)
def test_oar_g_equals_finite_differences(name):
    """<dJ/de_t, e_t> is the derivative of J along e_t: moved by a small step in float64."""
    model, batch = tiny_model(1).double(), random_batch(3, rows=1, longest=5)
    found = GradientImportance(noise_std=0.05, max_tokens_per_forward=1000)(inputs(batch, PROBES[name], model=model))
    prompt, reasoning, marker, answer = parts(batch, 0)
    ids = [*prompt, *reasoning, *([MARKER] if name == "lt_logits" else [*marker, *answer])]
    clean_embeds = model.get_input_embeddings()(torch.tensor([ids])).detach()
    noise = 0.05 * torch.randn(len(reasoning), 32, generator=torch.Generator().manual_seed(0))
    noisy = clean_embeds.clone()
    noisy[0, len(prompt) : len(prompt) + len(reasoning)] += noise

    def result(embeds):
        with torch.no_grad():
            logits = model(inputs_embeds=embeds).logits[0]
        if name == "lt_logits":
            return logits[-1].log_softmax(-1)
        predicting = logits[len(ids) - len(answer) - 1 : len(ids) - 1]
        if name == "as_mean":
            return predicting.mean(0).log_softmax(-1)
        return predicting.log_softmax(-1)[range(len(answer)), answer].mean()

    clean = result(clean_embeds)

    def j(embeds):
        changed = result(embeds)
        return float(clean - changed if name == "as_joint" else (clean.exp() * (clean - changed)).sum())

    for t in range(len(reasoning)):
        step = torch.zeros_like(noisy)
        step[0, len(prompt) + t] = 1e-3 * clean_embeds[0, len(prompt) + t]
        derivative = (j(noisy + step) - j(noisy - step)) / 2e-3
        # read_logits gives float32, hence the tolerance
        assert float(found[0, t]) == pytest.approx(abs(derivative), rel=2e-2, abs=2e-5)


def test_oar_g_leaves_parameter_gradients_alone():
    model, batch = tiny_model(), random_batch(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    GradientImportance(noise_std=1e-3, max_tokens_per_forward=64)(inputs(batch, PROBES["as_mean"], model=model))
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.requires_grad


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("name", ["oar_p", "oar_g"])
def test_chunks_and_padding_do_not_matter(name, probe):
    batch, estimator = random_batch(4, rows=5), type(ESTIMATORS[name])
    options = {"noise_std": 1e-2} if name == "oar_g" else {}
    one = estimator(**options, max_tokens_per_forward=10**6)(inputs(batch, PROBES[probe]))
    many = estimator(**options, max_tokens_per_forward=1)(inputs(batch, PROBES[probe]))
    torch.testing.assert_close(one, many, atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_every_estimator_promises(name):
    batch = random_batch(6, rows=4)
    importance = ESTIMATORS[name](inputs(batch, PROBES["lt_logits"]))
    assert importance.shape == batch.completion_mask.shape
    assert not importance.requires_grad
    assert (importance >= 0).all()
    assert (importance[~batch.reasoning_mask] == 0).all()
    again = ESTIMATORS[name](inputs(batch, PROBES["lt_logits"]))
    assert torch.equal(importance, again)  # the generator is the only source of chance


def test_noise_follows_the_generator():
    batch = random_batch(6)
    a = ESTIMATORS["oar_g"](inputs(batch, PROBES["as_mean"], seed=1))
    b = ESTIMATORS["oar_g"](inputs(batch, PROBES["as_mean"], seed=2))
    assert not torch.equal(a, b)


def test_a_token_the_answer_cannot_see_has_no_importance():
    """With every attention output zeroed, nothing but a token's own position feeds a position."""
    model, batch = tiny_model(), random_batch(7)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    for name in ("oar_p", "oar_g"):
        importance = ESTIMATORS[name](inputs(batch, PROBES["as_mean"], model=model))
        assert float(importance.max()) < 1e-6
