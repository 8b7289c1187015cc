"""OAR-G and the gradient norm against finite differences, and what a gradient signal may not touch."""

from copy import deepcopy

import pytest
import torch

from experiments.shared.peak_memory import peak_memory
from oar.common.errors import ConfigError, DataError
from oar.common.seeding import generator
from oar.config import LoraConfig
from oar.learner.sharding import recomputed_layers
from oar.method.importance import GradientImportance, GradientNormImportance, PerturbationImportance
from oar.method.probes import AnswerJointProbe, AnswerMeanProbe, LastTokenProbe
from oar.model.lora import add_adapter
from oar.statistics.attribution import spearman
from tests.models import MARKER, credit_inputs, random_batch, spread_embeddings, tiny_model
from tests.plain_oar_p import parts

PROBES = {"lt_logits": LastTokenProbe([MARKER]), "as_mean": AnswerMeanProbe(), "as_joint": AnswerJointProbe()}
ESTIMATORS = {"oar_g": GradientImportance(), "oar_gn": GradientNormImportance()}


class Completion:
    """One unpadded completion as a function of its input embeddings, straight from docs/METHOD.md §3."""

    def __init__(self, model, batch, row, probe):
        prompt, reasoning, marker, answer = parts(batch, row)
        self.model, self.probe, self.answer = model, probe, answer
        self.ids = [*prompt, *reasoning, *([MARKER] if probe == "lt_logits" else [*marker, *answer])]
        self.start, self.count = len(prompt), len(reasoning)
        self.embeds = model.get_input_embeddings()(torch.tensor([self.ids])).detach()

    def outcome(self, embeds):
        with torch.no_grad():
            logits = self.model(inputs_embeds=embeds).logits[0]
        if self.probe == "lt_logits":
            return logits[-1].log_softmax(-1)
        predicting = logits[len(self.ids) - len(self.answer) - 1 : len(self.ids) - 1]
        if self.probe == "as_mean":
            return predicting.mean(0).log_softmax(-1)
        return predicting.log_softmax(-1)[range(len(self.answer)), self.answer].mean()


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_oar_g_equals_finite_differences(name, keep_graph):
    """<dJ/de_t, e_t> is the derivative of J along e_t: moved by a small step in float64."""
    model, batch = tiny_model(1).double(), random_batch(3, rows=2, longest=5)
    inputs = credit_inputs(batch, PROBES[name], model=model, keep_graph=keep_graph)
    found = GradientImportance(noise_std=0.05)(inputs)
    for row in range(2):
        completion = Completion(model, batch, row, name)
        noise = 0.05 * torch.randn(1, completion.count, 32, generator=generator(inputs.seeds[row], "noise"))
        noisy = completion.embeds.clone()
        noisy[0, completion.start : completion.start + completion.count] += noise[0]
        clean = completion.outcome(completion.embeds)

        def j(embeds, completion=completion, clean=clean):
            changed = completion.outcome(embeds)
            return float(clean - changed if name == "as_joint" else (clean.exp() * (clean - changed)).sum())

        for t in range(completion.count):
            step = torch.zeros_like(noisy)
            step[0, completion.start + t] = 1e-3 * completion.embeds[0, completion.start + t]
            derivative = (j(noisy + step) - j(noisy - step)) / 2e-3
            # logits are read in float32, hence the tolerance
            assert float(found[row, t]) == pytest.approx(abs(derivative), rel=2e-2, abs=2e-5)


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_the_gradient_norm_equals_finite_differences(name, keep_graph):
    """Every coordinate of the embedding moved in turn; the log-probability is that of the clean outcome's top token."""
    model, batch = tiny_model(1).double(), random_batch(3, rows=2, longest=3)
    found = GradientNormImportance()(credit_inputs(batch, PROBES[name], model=model, keep_graph=keep_graph))
    completion = Completion(model, batch, 1, name)
    clean = completion.outcome(completion.embeds)

    def log_likelihood(embeds):
        outcome = completion.outcome(embeds)
        return float(outcome if name == "as_joint" else outcome[clean.argmax()])

    for t in range(completion.count):
        squares = 0.0
        for coordinate in range(32):
            step = torch.zeros_like(completion.embeds)
            step[0, completion.start + t, coordinate] = 1e-3
            change = log_likelihood(completion.embeds + step) - log_likelihood(completion.embeds - step)
            squares += (change / 2e-3) ** 2
        assert float(found[1, t]) == pytest.approx(squares, rel=1e-2)  # norms are float32


def test_the_trace_of_the_fisher_information_is_the_mean_squared_norm():
    """The derivation in the docstring, checked: E over a ~ P of |g(a)|^2 is the trace of the KL's second derivative."""
    model, batch = tiny_model(0, vocab=40).double(), random_batch(1, rows=1, longest=2)
    model.set_attn_implementation("eager")  # which can be differentiated twice
    completion = Completion(model, batch, 0, "as_mean")
    embeds = completion.embeds.clone().requires_grad_()
    start = len(completion.ids) - len(completion.answer) - 1

    def log_outcome(given):
        logits = model(inputs_embeds=given).logits[0, start : len(completion.ids) - 1]
        return logits.mean(0).log_softmax(-1)

    outcome = log_outcome(embeds)
    norms = torch.zeros(completion.count, dtype=torch.float64)
    for token, probability in enumerate(outcome.exp().tolist()):
        (gradient,) = torch.autograd.grad(outcome[token], embeds, retain_graph=True)
        norms += probability * gradient[0, completion.start : completion.start + completion.count].square().sum(-1)

    def kl(moved):
        other = completion.embeds.clone()
        other = torch.cat([other[:, : completion.start], moved[None, None], other[:, completion.start + 1 :]], dim=1)
        return (outcome.detach().exp() * (outcome.detach() - log_outcome(other))).sum()

    hessian = torch.autograd.functional.hessian(kl, completion.embeds[0, completion.start])
    assert float(hessian.trace()) == pytest.approx(float(norms[0]), rel=1e-3)


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_parameter_gradients_are_left_alone(name, keep_graph):
    model, batch = tiny_model(), random_batch(0)
    inputs = credit_inputs(batch, PROBES["as_mean"], model=model, keep_graph=keep_graph)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    found = ESTIMATORS[name](inputs)
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.requires_grad
    assert not found.requires_grad
    if keep_graph:
        inputs.scores.logprobs.sum().backward()  # the update's graph is still whole


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_chunks_padding_and_sharing_do_not_matter(name, probe):
    batch, estimator = random_batch(4, rows=5), ESTIMATORS[name]
    one = estimator(credit_inputs(batch, PROBES[probe]))
    many = type(estimator)(max_tokens_per_forward=1)(credit_inputs(batch, PROBES[probe]))
    shared = estimator(credit_inputs(batch, PROBES[probe], keep_graph=True))
    torch.testing.assert_close(one, many, atol=1e-7, rtol=5e-3)
    torch.testing.assert_close(one, shared, atol=1e-7, rtol=5e-3)
    subset = torch.tensor([3, 1])
    given = credit_inputs(batch, PROBES[probe], keep_graph=True)
    torch.testing.assert_close(estimator(given.rows(subset)), one[subset], atol=1e-7, rtol=5e-3)


def test_several_draws_are_averaged():
    inputs = credit_inputs(random_batch(6), PROBES["as_mean"])
    draws = GradientImportance(noise_draws=4).draws(inputs)
    assert not torch.allclose(draws[0], draws[1])
    torch.testing.assert_close(GradientImportance(noise_draws=4)(inputs), draws.mean(dim=0))


def test_noise_follows_the_seeds():
    batch = random_batch(6)
    one = GradientImportance()(credit_inputs(batch, PROBES["as_mean"], seed=1))
    assert torch.equal(one, GradientImportance()(credit_inputs(batch, PROBES["as_mean"], seed=1)))
    assert not torch.equal(one, GradientImportance()(credit_inputs(batch, PROBES["as_mean"], seed=2)))


def test_a_token_the_answer_cannot_see_has_no_importance():
    """With every attention output zeroed, nothing but a token's own position feeds a position."""
    model, batch = tiny_model(), random_batch(7)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    for estimator in (PerturbationImportance(), *ESTIMATORS.values()):
        assert float(estimator(credit_inputs(batch, PROBES["as_mean"], model=model)).max()) < 1e-6


def test_noise_and_norms_are_float32_in_a_bfloat16_model():
    """Noise of 1e-3 would be rounded away when it is added to a bfloat16 embedding: it must not be."""
    inputs = credit_inputs(random_batch(2), PROBES["as_mean"], model=tiny_model(3).bfloat16())
    for estimator in ESTIMATORS.values():
        found = estimator(inputs)
        assert found.dtype == torch.float32
        assert found.isfinite().all()
        assert (found[inputs.batch.reasoning_mask] > 0).float().mean() > 0.9


def agreement(coarse, fine, reasoning):
    """Mean over completions of the rank correlation of two importances (B, T)."""
    pairs = zip(coarse, fine, reasoning, strict=True)
    return sum(spearman(one[mask].numpy(), other[mask].numpy()) for one, other, mask in pairs) / len(reasoning)


def in_both(model, batch, **options):
    """OAR-G of a bfloat16 model, and of the same weights in float32 arithmetic."""
    return (
        GradientImportance()(credit_inputs(batch, PROBES["as_mean"], model=each, **options))
        for each in (model, deepcopy(model).float())
    )


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("spread", [0.016, 0.05, 1.0])
def test_bfloat16_ranks_tokens_as_float32_does(spread, keep_graph):
    """The noise is 6 %, 2 % and 0.1 % of the embeddings' spread: rounding must not swallow it."""
    batch = random_batch(0, rows=3, longest=30)
    both = in_both(spread_embeddings(spread), batch, keep_graph=keep_graph)
    assert agreement(*both, batch.reasoning_mask) > 0.97


def test_an_adapter_is_as_exact_as_what_it_adapts():
    model = spread_embeddings(1.0)
    add_adapter(model, LoraConfig(r=4, alpha=8, targets=["q_proj", "o_proj", "up_proj"]), seed=0)
    for name, weight in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(weight, std=0.1)
    batch = random_batch(0, rows=3, longest=30)
    assert agreement(*in_both(model.bfloat16(), batch), batch.reasoning_mask) > 0.97


def test_relative_noise_grows_with_the_embeddings():
    """The share of the root mean square of a completion's own reasoning embeddings, which here are 3 times as large."""
    batch = random_batch(6)
    one, larger = tiny_model(), tiny_model()
    with torch.no_grad():
        larger.get_input_embeddings().weight.mul_(3)
        reasoning = batch.completion_ids[0, batch.reasoning_mask[0]]
        spread = float(one.get_input_embeddings().weight[reasoning].square().mean().sqrt())
    relative = GradientImportance(noise_std=0.01, noise_relative=True)
    inputs, scaled = (
        credit_inputs(batch.rows(torch.tensor([0])), PROBES["as_mean"], model=each) for each in (one, larger)
    )
    torch.testing.assert_close(
        relative(inputs), GradientImportance(noise_std=0.01 * spread)(inputs), atol=1e-7, rtol=2e-2
    )
    expected = GradientImportance(noise_std=0.03 * spread)(scaled)
    torch.testing.assert_close(relative(scaled), expected, atol=1e-7, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_graph_is_bounded_by_tokens_not_by_rows(dtype):
    """Also where the update's forward is shared; and with checkpointed layers it is much smaller."""

    def held(rows, most, checkpointed=False):
        with peak_memory("cpu") as mark:
            model = tiny_model(layers=12).to(dtype)
            batch = random_batch(0, rows=1, longest=40).rows(torch.zeros(rows, dtype=torch.long))
            inputs = credit_inputs(batch, PROBES["as_mean"], model=model, keep_graph=True)
            before, _ = mark()
            with recomputed_layers(model, checkpointed):
                GradientImportance(max_tokens_per_forward=most)(inputs)
            return mark()[1] - before

    few = held(8, 100)
    assert held(32, 100) < 1.1 * few
    assert held(32, 400) > 2.5 * few
    assert held(8, 100, checkpointed=True) < 0.5 * few


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probe", PROBES)
def test_checkpointed_layers_change_nothing(probe, dtype):
    """In its backward a layer runs again as it ran: attention, read positions and pairs."""
    model, batch = tiny_model(layers=3).to(dtype), random_batch(4, rows=5)
    for most in (1, 60, 10_000):
        estimator = GradientImportance(max_tokens_per_forward=most)
        inputs = credit_inputs(batch, PROBES[probe], model=model)
        expected = estimator(inputs)
        with recomputed_layers(model):
            torch.testing.assert_close(estimator(inputs), expected, atol=0, rtol=1e-5)


def test_autocast_is_refused():
    """It makes keys of fewer digits than the noise needs."""
    inputs = credit_inputs(random_batch(0), PROBES["as_mean"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(DataError, match=r"must run outside of torch\.autocast"):
            GradientImportance()(inputs)
        with torch.autocast("cpu", enabled=False):
            assert GradientImportance()(inputs).max() > 0


@pytest.mark.parametrize("options", [{"noise_std": 0.0}, {"noise_draws": 0}])
def test_refused_options(options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} must be"):
        GradientImportance(**options)
