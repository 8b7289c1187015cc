"""The update: micro-batches of any size give one gradient, and it is the gradient of the textbook objective."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oar.config import TrainConfig, validated
from oar.learner.credit import Credited, given_credit
from oar.learner.update import LossBatch, accumulate_gradient, learning_rate
from oar.method.batch import CompletionBatch
from oar.method.credit import CreditAssigner
from oar.method.forward.logprobs import score_completions
from oar.method.gating import make_gate
from oar.method.importance import (
    EntropyBonusWeights,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    PerturbationImportance,
    RandomImportance,
    UniformImportance,
)
from oar.method.losses import loss_scale, policy_loss
from oar.method.probes import AnswerMeanProbe
from tests.config.test_config import composed
from tests.models import random_batch, tiny_model

CFG = validated(composed(), TrainConfig).learner


@dataclass
class Drawn:
    """Completions and all that their loss needs."""

    batch: CompletionBatch
    advantages: Tensor
    old_logprobs: Tensor
    token_advantages: Tensor
    left_out: Tensor | None = None

    @classmethod
    def plain(cls, batch, advantages):
        nothing = torch.zeros(batch.completion_mask.shape)
        return cls(batch, advantages, nothing, advantages[:, None] + nothing)

    def rows(self, index):
        values = (self.advantages[index], self.old_logprobs[index], self.token_advantages[index])
        return Drawn(self.batch.rows(index), *values)


def loss_inputs(model, rows=8, *, off_policy=0.0):
    batch = random_batch(0, rows=rows)
    generator = torch.Generator().manual_seed(1)
    advantages = torch.randn(rows, generator=generator)
    with torch.no_grad():
        old = score_completions(model, batch, temperature=1.0).logprobs
    old = old + off_policy * torch.randn(old.shape, generator=generator)
    token_advantages = torch.randn(old.shape, generator=generator)
    advantages[2], token_advantages[2] = 0.0, 0.0  # a completion without advantage
    return Drawn(batch, advantages, old, token_advantages)


def gradient(model, data, cfg, *, reference=None, credit=None):
    model.zero_grad(set_to_none=True)
    report, _ = accumulate_gradient(
        model,
        reference,
        LossBatch.of(data.batch, data.advantages, data.left_out),
        torch.arange(len(data.batch)),
        cfg,
        temperature=1.0,
        max_completion_length=16,
        credit=credit or given_credit(data.old_logprobs, data.token_advantages).lookup,
    )
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat(gradients) if gradients else None, report


@settings(max_examples=300)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 100))
def test_micro_batches_hold_the_tokens_they_may(lengths, most):
    """Each completion once; at most so many tokens but for a single one; so full that no two could be one."""
    empty = random_batch(0, rows=1).rows(torch.zeros(len(lengths), dtype=torch.long))
    batch = replace(
        empty, prompt_lengths=torch.ones(len(lengths)).long(), completion_lengths=torch.tensor(lengths).long()
    )
    index = torch.arange(len(lengths)).flip(0)
    parts = batch.micro_batches(index, most)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    tokens = [sum(1 + lengths[row] for row in part.tolist()) for part in parts]
    assert all(held <= most or len(part) == 1 for held, part in zip(tokens, parts, strict=True))
    held = sorted(tokens)[:2]
    assert len(held) < 2 or sum(held) > most
    assert all(torch.equal(one, other) for one, other in zip(parts, batch.micro_batches(index, most), strict=True))


def test_few_micro_batches_are_needed():
    """Long and short completions share one: 100 pairs of 61 and 39 tokens are 100 micro-batches of 100, whatever their order."""
    lengths = torch.tensor([60, 38] * 100)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    batch = random_batch(0, rows=1).rows(torch.zeros(200, dtype=torch.long))
    batch = replace(batch, prompt_lengths=torch.ones(200).long(), completion_lengths=lengths)
    assert len(batch.micro_batches(torch.arange(200), 100)) == 100


def test_completions_of_one_prompt_share_a_micro_batch():
    """Two prompts of 40 tokens, two completions of 9 each: 39 + 2 x 10 = 59 tokens a prompt, where four alone are 196."""
    ids = torch.tensor([[5] * 40, [6] * 40, [5] * 40, [6] * 40])
    empty = random_batch(0, rows=1).rows(torch.zeros(4, dtype=torch.long))
    lengths = torch.full((4,), 40), torch.full((4,), 9)
    batch = replace(empty, input_ids=ids, prompt_lengths=lengths[0], completion_lengths=lengths[1])

    def parts(most):
        return [part.tolist() for part in batch.micro_batches(torch.arange(4), most)]

    assert parts(118) == [[0, 2, 1, 3]]
    assert parts(117) == parts(59) == [[0, 2], [1, 3]]
    assert parts(58) == [[0], [2], [1], [3]]


MODELS = tiny_model(), tiny_model(5)


@cache
def one_by_one(aggregation, with_reference):
    cfg = replace(CFG, aggregation=aggregation, kl_coef=0.1 if with_reference else 0.0, micro_batch_tokens=1)
    data, reference = loss_inputs(MODELS[0], off_policy=0.3), MODELS[1] if with_reference else None
    return data, reference, cfg, *gradient(MODELS[0], data, cfg, reference=reference)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 140), st.sampled_from(["sequence_mean", "token_mean", "constant"]), st.booleans())
def test_micro_batches_give_the_same_gradient(most, aggregation, with_reference):
    """To 1e-6 of the largest, whatever they may hold, from one completion at a time to all 125 tokens."""
    data, reference, cfg, expected, report = one_by_one(aggregation, with_reference)
    cfg = replace(cfg, micro_batch_tokens=most)
    found, found_report = gradient(MODELS[0], data, cfg, reference=reference)
    largest = float(expected.abs().max())
    assert float((found - expected).abs().max()) < 1e-6 * largest
    assert found_report == pytest.approx(report, abs=1e-6)
    assert float(expected.norm()) > 0.01


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_the_order_of_completions_changes_nothing(aggregation):
    """Nothing is padded, whatever goes together: the gradient of one forward over the batch as it was drawn."""
    model = tiny_model()
    data = loss_inputs(model, off_policy=0.3)
    mask = data.batch.completion_mask
    model.zero_grad(set_to_none=True)
    policy_loss(
        score_completions(model, data.batch, temperature=1.0).logprobs,
        data.old_logprobs,
        data.token_advantages,
        loss_scale(mask, aggregation, 16),
        clip_eps_low=CFG.clip_eps_low,
        clip_eps_high=CFG.clip_eps_high,
    )[0].backward()
    padded = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    cfg = replace(CFG, aggregation=aggregation, micro_batch_tokens=40)
    reports = []
    for seed in range(3):
        order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
        drawn, seen = data.rows(order), {}

        def credit(rows, scores, drawn=drawn, seen=seen):
            assert len(scores.forward.hidden) == int(
                (drawn.batch.prompt_lengths + drawn.batch.completion_lengths)[rows].sum()
            )
            seen.update(zip(rows.tolist(), scores.logprobs.detach(), strict=True))
            return given_credit(drawn.old_logprobs, drawn.token_advantages).lookup(rows, scores)

        found, report = gradient(model, drawn, cfg, credit=credit)
        torch.testing.assert_close(found, padded, atol=1e-6, rtol=1e-5)
        reports.append(report)
        assert sorted(seen) == [row for row in range(len(mask)) if drawn.advantages[row] != 0]
        with torch.no_grad():
            expected = score_completions(model, drawn.batch, temperature=1.0).logprobs
        for row, logprobs in seen.items():
            torch.testing.assert_close(logprobs, expected[row], atol=2e-6, rtol=1e-5)
    assert reports[1] == pytest.approx(reports[0], abs=1e-6)
    assert reports[2] == pytest.approx(reports[0], abs=1e-6)


def test_gradient_is_that_of_the_textbook_objective():
    """On policy, the gradient is that of mean over completions of mean over tokens of -A logprob, all logits at once."""
    model = tiny_model()
    data = loss_inputs(model, rows=4)
    found, report = gradient(model, data, replace(CFG, micro_batch_tokens=40))
    model.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for row in range(4):
        prompt, length = int(data.batch.prompt_lengths[row]), int(data.batch.completion_lengths[row])
        ids = data.batch.input_ids[row, : prompt + length]
        logprobs = model(ids[None]).logits[0, prompt - 1 : -1].log_softmax(-1)[range(length), ids[prompt:]]
        loss = loss - (data.token_advantages[row, :length] * logprobs).mean() / 4
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert report["train/clip_fraction"] == 0.0
    assert report["train/approx_kl"] == pytest.approx(0.0, abs=1e-9)


def test_stale_completions_have_the_gradient_of_decoupled_ppo():
    """Drawn by mu, scored anew by the learner: -min(pi_old / mu, cap) A d log pi, whatever mu is, and nothing is clipped."""
    model = tiny_model()
    data = loss_inputs(model, rows=4)
    stale = data.old_logprobs + torch.randn(data.old_logprobs.shape, generator=torch.Generator().manual_seed(3))
    data.batch = replace(data.batch, sampler_logprobs=stale)
    found, report = gradient(model, data, replace(CFG, sampler_correction_cap=2.0))
    assert report["train/clip_fraction"] == 0.0
    weight = (data.old_logprobs - stale).exp().clamp(max=2.0)
    assert float((weight == 2.0).float().mean()) > 0.1
    data.token_advantages = weight * data.token_advantages
    expected, _ = gradient(model, data, CFG)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_approximate_kl_is_a_mean_over_completions_that_were_run():
    """Where groups come to be all right, their completions must not make the policy look as if it moved less."""
    model, rows = tiny_model(), torch.tensor([0, 5])
    data = loss_inputs(model, off_policy=0.3)
    idle = torch.ones(8, dtype=torch.bool)
    idle[rows] = False
    data.advantages[idle] = 0.0
    _, report = gradient(model, data, CFG)
    with torch.no_grad():
        moved = score_completions(model, data.batch, temperature=1.0).logprobs - data.old_logprobs
    moved = moved[rows][data.batch.completion_mask[rows]]
    assert report["train/approx_kl"] == pytest.approx(float((moved.exp() - 1 - moved).mean()), rel=1e-4)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("with_reference", [False, True])
def test_completions_left_out_are_as_if_they_had_not_been_drawn(aggregation, with_reference):
    model, reference = tiny_model(), tiny_model(5) if with_reference else None
    cfg = replace(CFG, aggregation=aggregation, micro_batch_tokens=50, kl_coef=0.1 if with_reference else 0.0)
    data = loss_inputs(model, off_policy=0.3)
    whole, _ = gradient(model, data, cfg, reference=reference)
    left_out = torch.arange(8) % 3 == 0
    found, report = gradient(model, replace(data, left_out=left_out), cfg, reference=reference)
    assert not torch.allclose(found, whole, atol=1e-3)

    stay = (~left_out).nonzero()[:, 0]
    expected, expected_report = gradient(model, data.rows(stay), cfg, reference=reference)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert report == pytest.approx(expected_report, abs=1e-6)


def test_a_batch_that_is_left_out_as_a_whole_does_not_fail():
    data = replace(Drawn.plain(random_batch(0, rows=4), torch.ones(4)), left_out=torch.ones(4, dtype=torch.bool))
    _, report = gradient(tiny_model(), data, CFG)
    assert set(report.values()) == {0.0}


def test_a_sequence_ratio_counts_the_same_in_micro_batches():
    model = tiny_model()
    data, cfg = (
        loss_inputs(model, off_policy=0.1),
        replace(CFG, ratio_level="sequence", clip_eps_low=3e-2, clip_eps_high=4e-2),
    )
    whole, report = gradient(model, data, replace(cfg, micro_batch_tokens=200))
    parts, part_report = gradient(model, data, replace(cfg, micro_batch_tokens=50))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
    assert part_report == pytest.approx(report, abs=1e-6)
    assert 0 < report["train/clip_fraction"] < 1


def test_a_batch_without_any_advantage_has_no_gradient_and_does_not_fail():
    model = tiny_model()
    _, report = gradient(model, Drawn.plain(random_batch(0, rows=8), torch.zeros(8)), CFG)
    assert report == {"train/loss": 0.0, "train/clip_fraction": 0.0, "train/approx_kl": 0.0}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)) == 0.0


ESTIMATORS = {
    "uniform": UniformImportance(),
    "random": RandomImportance(),
    "oar_p": PerturbationImportance(),
    "oar_p resampled": PerturbationImportance("resampled", window=2),
    "oar_p routes": PerturbationImportance(window=1, routes=2),
    "oar_g": GradientImportance(),
    "oar_gn": GradientNormImportance(),
    "grail": GrailWeights(rollout_symmetry="both"),
    "entropy_advantage": EntropyBonusWeights(),
}


def crediting(model, name, batch, advantages):
    """What the learner does with each forward of the update."""
    gate = make_gate(tau=0.4, beta=2.0, floor=0.1, threshold="quantile")
    assigner = CreditAssigner(ESTIMATORS[name], gate, AnswerMeanProbe())

    def credit(rows, scores):
        given = assigner(model, batch.rows(rows), scores, advantages[rows], seeds=rows.tolist())
        return Credited.of(rows, scores, given)

    return credit


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_forward_serves_credit_and_loss(name):
    """Credit assigned while updating, in micro-batches of any size, is credit assigned beforehand to the whole batch."""
    model = tiny_model()
    batch = random_batch(0, rows=8, unanswered=(1,))
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(1))
    advantages[2] = 0.0
    credit, drawn = crediting(model, name, batch, advantages), Drawn.plain(batch, advantages)
    with torch.no_grad():
        known = credit(torch.arange(8), score_completions(model, batch, temperature=1.0).numbers())
    expected, _ = gradient(model, drawn, replace(CFG, micro_batch_tokens=200), credit=known.lookup)
    for most in (200, 50, 1):
        found, _ = gradient(model, drawn, replace(CFG, micro_batch_tokens=most), credit=credit)
        # OAR-G differentiates a KL of about 1e-6, of which float32 keeps a few digits.
        torch.testing.assert_close(found, expected, atol=1e-4 if name == "oar_g" else 2e-5, rtol=1e-3)
    if name != "uniform":
        uniform = replace(drawn, old_logprobs=known.old_logprobs)
        plain, _ = gradient(model, uniform, replace(CFG, micro_batch_tokens=200))
        assert not torch.allclose(plain, expected, atol=1e-3)


@pytest.mark.parametrize("name", ["oar_g", "oar_gn", "oar_p"])
def test_layers_that_run_again_give_the_same_gradient(name):
    """The backward pass runs each layer once more, as it ran in the forward that credit looked into."""
    model, batch, runs, credited = tiny_model(), random_batch(0, rows=8), [], []
    advantages = torch.randn(8, generator=torch.Generator().manual_seed(1))
    assigned = crediting(model, name, batch, advantages)

    def credit(rows, scores):
        before = len(runs)
        given = assigned(rows, scores)
        credited.append(len(runs) - before)
        del runs[before:]
        return given

    def found(**changes):
        runs.clear()
        cfg = replace(CFG, micro_batch_tokens=75, **changes)
        return gradient(model, Drawn.plain(batch, advantages), cfg, credit=credit)[0], len(runs)

    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    kept, once = found()
    again, twice = found(activation_checkpointing=True)
    assert (once, twice) == (2, 4)  # two micro-batches
    if name == "oar_g":
        assert credited == [1, 1, 2, 2]  # its own graph is checkpointed as well
    torch.testing.assert_close(again, kept, atol=0, rtol=0)


def test_warm_up():
    cfg = replace(CFG, lr=1.0, warmup_steps=4)
    assert [learning_rate(cfg, update) for update in (0, 1, 3, 4, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert learning_rate(replace(cfg, warmup_steps=0), 0) == 1.0
