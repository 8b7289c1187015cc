"""Outcomes that need no answer span, a reward model's score and a reference's likelihood, against loops that share nothing."""

from dataclasses import replace

import pytest
import torch

from oar.common.errors import DataError
from oar.common.seeding import generator
from oar.method.credit import CreditAssigner
from oar.method.gating import make_gate
from oar.method.importance import GradientImportance, GradientNormImportance, PerturbationImportance
from oar.method.importance.clean import clean_passes
from oar.method.importance.replacements import replacement_ids
from oar.method.probes import AnswerMeanProbe, ReferenceProbe, RewardModelProbe
from tests.models import MARKER, PAD, credit_inputs, random_batch, tiny_model, tiny_scorer

exactly = {"atol": 1e-5, "rtol": 1e-4}
CONCLUDE = [MARKER, 7]
NAMES = ("reward_model", "reference")


def batch_of(seed, **options):
    return random_batch(seed, unanswered=(1,), needs_answer=False, **options)


class Outcome:
    """The outcome of one unpadded completion as transformers gives it, straight from docs/METHOD.md §3."""

    def __init__(self, name, batch, row, policy, scorer):
        self.name, self.model = name, scorer if name == "reward_model" else policy
        prompt, length = int(batch.prompt_lengths[row]), int(batch.completion_lengths[row])
        reasoning = int(batch.reasoning_mask[row].sum())
        ids = batch.input_ids[row].tolist()
        self.reference = batch.reference_ids[row][batch.reference_mask[row]].tolist()
        whole, behind = ids[: prompt + length], [*ids[: prompt + reasoning], *CONCLUDE, *self.reference]
        self.ids = whole if name == "reward_model" else behind
        self.reasoning = range(prompt, prompt + reasoning)
        self.embeds = self.model.get_input_embeddings()(torch.tensor([self.ids])).detach()

    def __call__(self, embeds):
        with torch.no_grad():
            logits = self.model(inputs_embeds=embeds).logits[0]
        if self.name == "reward_model":
            return float(logits)
        predicting = logits[-len(self.reference) - 1 : -1].log_softmax(-1)
        return float(predicting[range(len(self.reference)), self.reference].mean())

    def with_token(self, position, token):
        changed = list(self.ids)
        changed[position] = token
        return self(self.model.get_input_embeddings()(torch.tensor([changed])))


def case(name, seed=3, *, double=False, **options):
    """A policy, the inputs of its batch, whose second completion has no answer, under the probe, and the outcomes by hand."""
    policy, scorer, batch = tiny_model(seed), tiny_scorer(seed + 1, layers=3), batch_of(seed)
    if double:
        policy, scorer = policy.double(), scorer.double()
    probe = RewardModelProbe(scorer) if name == "reward_model" else ReferenceProbe(CONCLUDE, "solution")
    inputs = credit_inputs(batch, probe, model=policy, **options)
    return inputs, [Outcome(name, batch, row, policy, scorer) for row in range(len(batch))]


def test_without_an_answer_all_but_the_last_token_is_reasoning():
    batch, plain = batch_of(0), random_batch(0, unanswered=(1,))
    assert batch.has_segments.all()
    assert plain.has_segments.tolist() == batch.has_answer.tolist() == [True, False, True, True]
    assert int(batch.reasoning_mask[1].sum()) == int(batch.completion_lengths[1]) - 1
    assert not batch.marker_mask[1].any()
    for row in (0, 2, 3):
        assert torch.equal(batch.reasoning_mask[row], plain.reasoning_mask[row])


@pytest.mark.parametrize("name", NAMES)
def test_the_clean_outcome_is_that_of_transformers(name):
    inputs, outcomes = case(name)
    for limit in (1, 40, 4096):
        for clean in clean_passes(inputs, limit, graph=False):
            expected = [outcomes[row](outcomes[row].embeds) for row in clean.completions.tolist()]
            torch.testing.assert_close(clean.outcome, torch.tensor(expected), **exactly)


def test_a_score_is_read_where_transformers_reads_it():
    """At the last token that is not the model's padding, also where a completion ends with that."""
    scorer, batch = tiny_scorer(), batch_of(2)
    scorer.config.pad_token_id = int(batch.completion_ids[0, int(batch.completion_lengths[0]) - 1])  # EOS
    inputs = credit_inputs(batch, RewardModelProbe(scorer))
    (clean,) = clean_passes(inputs, 4096, graph=False)
    for row, outcome in zip(clean.completions.tolist(), clean.outcome.tolist(), strict=True):
        ids = batch.input_ids[row, : int(batch.prompt_lengths[row] + batch.completion_lengths[row])]
        with torch.no_grad():
            assert outcome == pytest.approx(float(scorer(ids[None]).logits), abs=1e-5)


@pytest.mark.parametrize("estimator", [PerturbationImportance(), GradientImportance(), GradientNormImportance()])
def test_a_reference_may_be_longer_than_every_completion(estimator):
    inputs, _ = case("reference")
    long = torch.randint(4, 40, (len(inputs.batch), 3 * inputs.batch.completion_ids.shape[1]))
    batch = replace(inputs.batch, reference_ids=long, reference_mask=torch.ones_like(long, dtype=torch.bool))
    found = estimator(replace(inputs, batch=batch))
    assert found.shape == batch.reasoning_mask.shape
    assert (found[batch.reasoning_mask] > 0).float().mean() > 0.9


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_oar_p_equals_a_naive_loop(name, keep_graph):
    """Both ways count: a token whose change raises the outcome matters as much."""
    inputs, outcomes = case(name, keep_graph=keep_graph)
    found = PerturbationImportance(max_tokens_per_forward=50)(inputs)
    moved = torch.zeros(found.shape)
    for row, outcome in enumerate(outcomes):
        clean = outcome(outcome.embeds)
        for t, position in enumerate(outcome.reasoning):
            moved[row, t] = clean - outcome.with_token(position, PAD)
    assert (moved < -1e-3).any()
    assert (moved > 1e-3).any()
    torch.testing.assert_close(found, moved.abs(), **exactly)
    assert (moved[1] != 0).sum() == int(inputs.batch.completion_lengths[1]) - 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["random_token", "resampled", "knockout"])
@pytest.mark.parametrize("reach", [{}, {"window": 2}, {"window": 0, "routes": 2}])
def test_neither_other_completions_nor_chunks_matter(name, kind, reach):
    inputs, _ = case(name)
    whole = PerturbationImportance(kind, **reach)(inputs)
    assert torch.isfinite(whole).all()
    assert (whole[1] > 0).any()
    parts = PerturbationImportance(kind, **reach, max_tokens_per_forward=20)(inputs)
    torch.testing.assert_close(parts, whole, **exactly)
    alone = PerturbationImportance(kind, **reach)(inputs.rows(torch.tensor([1])))
    torch.testing.assert_close(alone[0], whole[1], **exactly)


@pytest.mark.parametrize("keep_graph", [False, True])
def test_resampled_tokens_are_drawn_from_the_policy_whoever_reads_them(keep_graph):
    inputs, _ = case("reward_model", keep_graph=keep_graph)
    drawn = {}
    for probe in (inputs.probe, ReferenceProbe(CONCLUDE, "solution")):
        (clean,) = clean_passes(replace(inputs, probe=probe), 4096, graph=False)
        row, token = inputs.batch.reasoning_mask[clean.completions].nonzero(as_tuple=True)
        with torch.no_grad():
            ids = replacement_ids("resampled", replace(inputs, probe=probe), clean, row, token)
        drawn[type(probe)] = set(zip(clean.completions[row].tolist(), token.tolist(), ids.tolist(), strict=True))
    assert drawn[RewardModelProbe] == drawn[ReferenceProbe]


@pytest.mark.parametrize("keep_graph", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences(name, keep_graph):
    """OAR-G along the embedding at the noisy point, whatever the draw of the sign; the norm coordinate by coordinate."""
    inputs, outcomes = case(name, double=True, keep_graph=keep_graph)
    oar_g, oar_gn = GradientImportance(noise_std=0.05)(inputs), GradientNormImportance()(inputs)
    for row in (0, 1):
        outcome = outcomes[row]
        start, count = outcome.reasoning.start, len(outcome.reasoning)
        noisy = outcome.embeds.clone()
        noisy[0, start : start + count] += (
            0.05 * torch.randn(1, count, 32, generator=generator(inputs.seeds[row], "noise"))[0]
        )

        def slope(at, step, outcome=outcome):
            return (outcome(at + step) - outcome(at - step)) / 2e-3

        for t in (0, count - 1):
            step = torch.zeros_like(noisy)
            step[0, start + t] = 1e-3 * outcome.embeds[0, start + t]
            assert float(oar_g[row, t]) == pytest.approx(abs(slope(noisy, step)), rel=2e-2, abs=2e-5)
            squares = 0.0
            for coordinate in range(32):
                step = torch.zeros_like(noisy)
                step[0, start + t, coordinate] = 1e-3
                squares += slope(outcome.embeds, step) ** 2
            assert float(oar_gn[row, t]) == pytest.approx(squares, rel=2e-2, abs=2e-5)


def test_a_noise_that_moves_no_score_is_still_a_slope():
    probe = RewardModelProbe(tiny_scorer())
    changed = torch.tensor([0.5, 0.2, 0.9], requires_grad=True)
    moved = probe.divergence(torch.tensor([0.5, 0.5, 0.5]), changed)
    assert moved.tolist() == pytest.approx([0.0, 0.3, 0.4])
    (slope,) = torch.autograd.grad(moved.sum(), changed)
    assert slope.abs().tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", NAMES)
def test_a_completion_without_an_answer_is_reweighted_and_keeps_its_mass(name):
    inputs, _ = case(name)
    gate = make_gate(tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
    advantages = torch.tensor([0.3, -0.7, 0.0, -0.1])
    credit = CreditAssigner(PerturbationImportance(), gate, inputs.probe).assign(replace(inputs, advantages=advantages))
    mask = inputs.batch.reasoning_mask[1]
    assert (credit.token_weights[1][mask] != 1).any()
    assert float(credit.token_weights[1][mask].sum()) == pytest.approx(int(mask.sum()), rel=1e-5)
    assert (credit.token_weights[1][~mask] == 1).all()
    assert (credit.token_weights[2] == 1).all()
    plain = credit_inputs(random_batch(3, unanswered=(1,)), AnswerMeanProbe(), model=inputs.model)
    fallback = CreditAssigner(PerturbationImportance(), gate, plain.probe).assign(replace(plain, advantages=advantages))
    assert (fallback.token_weights[1] == 1).all()


def test_the_policy_s_gradient_and_the_scorer_are_left_alone():
    inputs, _ = case("reward_model", keep_graph=True)
    before = [parameter.clone() for parameter in inputs.probe.model.parameters()]
    for estimator in (GradientImportance(), GradientNormImportance(), PerturbationImportance(budget=2)):
        assert not estimator(inputs).requires_grad
    everyone = [*inputs.model.parameters(), *inputs.probe.model.parameters()]
    assert all(parameter.grad is None for parameter in everyone)
    assert all(map(torch.equal, before, inputs.probe.model.parameters()))


def test_a_reference_that_is_missing_is_refused():
    batch = batch_of(1)
    with pytest.raises(DataError, match="probe=reference needs the answer of every problem in tokens"):
        ReferenceProbe(CONCLUDE, "answer").inputs(batch)
    golds = replace(batch, gold_ids=batch.reference_ids, gold_mask=batch.reference_mask)
    shown, expected = (ReferenceProbe(CONCLUDE, of).inputs(one) for of, one in (("answer", golds), ("solution", batch)))
    assert torch.equal(shown.input_ids, expected.input_ids)
