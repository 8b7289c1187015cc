"""Completions made by hand from word problems, scored by a tiny random model: ground truth, parity, what the gate gets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from oar.analysis.signals.examine import Subject, as_the_gate_sees_it, examine, gated, redrawn, signal_importance
from oar.common.errors import DataError, SyncError
from oar.config import TrainConfig, build, validated
from oar.method.gating import bilevel_weights
from oar.method.probes import ReferenceProbe
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.models import tiny_model

PROBLEM = Problem("p1", "Tom has 7 pens . Tom buys 3 more .", "10", "words1", "7 . 7 + 3 = 10 .")
RIGHT = "We start with 7 pens . Then 7 + 3 = 1 0 . That is all . #### 1 0"
WRONG = "We start with 7 pens . Then 7 + 4 = 1 1 . That is all . #### 1 1"
SILENT = "We start with 7 pens . Then 7 + 3"


def task() -> Task:
    return Task(build_tokenizer(), "####")


def model() -> PreTrainedModel:
    return tiny_model(vocab=len(build_tokenizer()))


def settings(*overrides: str) -> TrainConfig:
    return validated(composed("probe=as_mean", *overrides), TrainConfig)


def rollout(text: str) -> Rollout:
    """A completion with the logprobs that `model` gives its tokens."""
    words, prompt = task(), tuple(task().encode_prompt(PROBLEM))
    ids = words.tokenizer.encode(text, add_special_tokens=False)
    with torch.no_grad():
        logits = model()(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    logprobs = logits.log_softmax(-1)[range(len(ids)), ids]
    return Rollout(prompt, tuple(ids), tuple(logprobs.tolist()), 0, "stop")


def subject(*texts: str) -> Subject:
    return examine(model(), task(), [PROBLEM], [[rollout(text) for text in texts]], settings())


def test_what_is_true_of_each_completion() -> None:
    found = subject(SILENT, RIGHT, WRONG)
    assert found.drawn == 3
    assert len(found.inputs.batch) == 2  # without an answer there is nothing to measure
    assert found.truth.problems == ["p1", "p1"]
    assert found.truth.correct.tolist() == [True, False]
    for text, causal, error in zip((RIGHT, WRONG), found.truth.causal, found.truth.error, strict=True):
        words = text.split(" ####")[0].split()
        assert [word for word, mark in zip(words, causal, strict=True) if mark] == [w for w in words if w in "7+3104"]
        assert [at for at, mark in enumerate(error) if mark] == ([words.index("4")] if text == WRONG else [])


def test_the_samplers_logprobs_must_be_the_models() -> None:
    other = rollout(RIGHT)
    shifted = replace(other, sampler_logprobs=tuple(value - 0.1 for value in other.sampler_logprobs))
    with pytest.raises(SyncError, match="logprobs must agree"):
        examine(model(), task(), [PROBLEM], [[shifted]], settings())


def test_importance_as_the_gate_gets_it() -> None:
    found = subject(RIGHT, WRONG)
    plain, product = settings("method=oar_p"), settings("method=oar_p", "method.times_surprisal=true")
    importance = signal_importance(found, plain)
    for row, (once, times) in enumerate(
        zip(
            as_the_gate_sees_it(found, importance, plain),
            as_the_gate_sees_it(found, importance, product),
            strict=True,
        )
    ):
        tokens = int(found.masks[row].sum())
        assert once.tolist() == importance[row, :tokens].tolist()
        surprisal = -np.array(rollout((RIGHT, WRONG)[row]).sampler_logprobs[:tokens])
        np.testing.assert_allclose(times, once * surprisal, rtol=1e-4, atol=1e-7)


def test_weights_are_the_gates() -> None:
    found, product = subject(RIGHT, WRONG), settings("method=oar_p", "method.times_surprisal=true")
    importance = signal_importance(found, product)
    seen, weights = as_the_gate_sees_it(found, importance, product), gated(found, importance, product)
    for values, ours in zip(seen, weights, strict=True):
        mask = torch.ones(1, len(values), dtype=torch.bool)
        options = {"tau": 0.4, "beta": 2.0, "floor": 0.1, "threshold": "quantile"}
        (expected,) = bilevel_weights(torch.from_numpy(values)[None], mask, **options)
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
        assert ours.mean() == pytest.approx(1)
        assert ours.std() > 0.1


def test_a_signal_of_another_seed_draws_anew() -> None:
    found = subject(SILENT, RIGHT, WRONG)
    same, other = (settings("method=random", f"seed={seed}") for seed in (1, 2))
    assert list(redrawn(found, 1).seeds) == list(found.inputs.seeds)
    assert not torch.equal(signal_importance(found, same), signal_importance(found, other))
    assert torch.equal(signal_importance(found, other), signal_importance(found, other))


def test_the_same_completions_give_the_same_noise() -> None:
    """Seeds go by the place among all completions drawn, so a signal can be computed again in part."""
    assert subject(RIGHT, WRONG).inputs.seeds == subject(RIGHT, WRONG).inputs.seeds
    assert subject(SILENT, WRONG).inputs.seeds == subject(RIGHT, WRONG).inputs.seeds[1:]


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(DataError, match="completions with an answer"):
        subject(SILENT)
    with pytest.raises(DataError, match="must know which tokens are causal"):
        examine(model(), task(), [replace(PROBLEM, benchmark="other")], [[rollout(RIGHT)]], settings())


def test_methods_with_a_privileged_look_are_shown_what_they_ask_for() -> None:
    examined = subject(SILENT, WRONG, RIGHT)
    assert not examined.inputs.batch.context_ids.shape[1]
    for method, shown in (("rlsd", [True, True]), ("serl", [True, False])):  # feedback: of the wrong one
        signal = settings(f"method={method}")
        asked = examined.asked(build("it", signal.method.estimator))
        assert asked.batch.has_context.tolist() == shown
        assert torch.equal(asked.batch.completion_ids, examined.inputs.batch.completion_ids)
        weights = signal_importance(examined, signal)
        assert (weights != 1).any(dim=1).tolist() == shown
    for method in ("mig", "mig_steps"):
        assert torch.isfinite(signal_importance(examined, settings(f"method={method}"))).all()


def test_a_signal_has_its_own_probe() -> None:
    """Beside others on the same completions: of the reference it reads the problem's own solution."""
    found = subject(RIGHT, WRONG)
    own = settings("method=oar_p", "probe=reference")
    estimator = build("method.estimator", own.method.estimator)
    expected = estimator(replace(found.inputs, probe=ReferenceProbe(task().encode_marker(None), "solution")))
    torch.testing.assert_close(signal_importance(found, own), expected)
    solution = found.inputs.batch.reference_ids[0][found.inputs.batch.reference_mask[0]]
    assert task().decode(solution.tolist()).split() == PROBLEM.solution.split()
    assert not torch.allclose(signal_importance(found, settings("method=oar_p")), expected)
