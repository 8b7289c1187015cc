"""The measurement of gradients on a real model: classes, linearity, and the target against the textbook's policy gradient."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from experiments.gradient_signal import __main__ as gradient_signal
from experiments.gradient_signal.__main__ import (
    CLASSES,
    coordinates,
    gradient,
    token_classes,
)
from experiments.gradient_signal.__main__ import drawn as draw_graded
from experiments.shared.credited import credited
from oar.analysis.signals.examine import completion_advantages, score_batch
from oar.learner.collect import grade_rollouts
from oar.method.forward.logprobs import score_completions
from oar.rollout.types import Rollout
from oar.tasks.embedded.teaching import build_model
from oar.tasks.task import Task
from oar.tasks.words import TEACHING_STREAM, build_tokenizer, demonstration, make_tiers, training_problem
from oar.tasks.words.teaching import TeachConfig
from tests.experiments.measurements import config, prepared


def demonstrations(task, device):
    """Demonstrations as completions: 4 problems x 4, with filler, some answers made wrong, graded."""
    problems, groups = [], []
    for index in range(4):
        made = training_problem(make_tiers(filler=2), TEACHING_STREAM, 0, index)
        texts = [demonstration(made, Random(10 * index + copy)) for copy in range(4)]
        texts[0] = texts[0] + " 1"  # another number than the answer
        texts[1] = texts[1].partition("####")[0].strip()  # no answer at all
        ids = [[*task.tokenizer.encode(text, add_special_tokens=False), task.tokenizer.eos_token_id] for text in texts]
        prompt = tuple(task.encode_prompt(made.problem))
        problems.append(made.problem)
        groups.append([Rollout(prompt, tuple(one), (0.0,) * len(one), 0, "stop") for one in ids])
    return grade_rollouts(problems, groups, task, device)


def small(settings):
    return replace(settings, learner=replace(settings.learner, num_generations=4, micro_batch_tokens=300))


def untaught(tokenizer):
    return build_model(TeachConfig(hidden_size=32, num_layers=1), tokenizer).eval()


@pytest.fixture(scope="module")
def drawn():
    """An untaught model with demonstrations as its completions."""
    arms, tokenizer = prepared("gradient_signal"), build_tokenizer(1024)
    settings, task, model = small(arms["grpo"]), Task(tokenizer, "####"), untaught(tokenizer)
    graded = demonstrations(task, torch.device("cpu"))
    return settings, arms, task, model, graded, score_batch(model, graded.batch, settings)


def test_every_token_is_of_one_class_and_causal_ones_are_the_tasks(drawn) -> None:
    _, _, task, _, graded, _ = drawn
    classes = token_classes(graded, task)
    assert tuple(classes) == CLASSES
    total = sum(mask.int() for mask in classes.values())
    assert torch.equal(total, graded.batch.completion_mask.int())
    assert all(mask.any() for mask in classes.values())
    assert torch.equal(classes["causal"], graded.marks["causal"])
    said = {name: set(task.decode(graded.batch.completion_ids[mask]).split()) for name, mask in classes.items()}
    assert said["signs"] == {"=", "."}
    assert "####" in said["end"]
    assert "=" not in said["words"]
    assert "hmm" not in said["words"]
    unmarked = token_classes(replace(graded, marks={}), task)
    assert not unmarked["causal"].any()
    assert torch.equal(unmarked["end"], classes["end"])


def test_the_classes_gradients_add_up_to_the_uniform_one(drawn) -> None:
    settings, arms, task, model, graded, scores = drawn
    advantages = completion_advantages(graded.rewards, settings.learner)
    assert (advantages != 0).all()
    index = torch.arange(8)

    def of(token_advantages):
        return gradient(model, graded, scores, token_advantages, index, settings.learner, 1.0)

    uniform = credited(arms["grpo"], model, task, graded, scores).token_weights
    assert torch.equal(uniform, torch.ones_like(uniform))
    whole = of(advantages[:, None] * uniform)
    parts = [of(advantages[:, None] * mask) for mask in token_classes(graded, task).values()]
    assert np.abs(whole).max() > 1e-3
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, atol=1e-5, rtol=1e-5)


def test_the_target_is_the_textbooks_gradient_of_the_expected_reward(drawn) -> None:
    """REINFORCE with leave-one-out baselines: mean over completions of (r_i - mean of the others) x grad log p(completion)."""
    settings, _, _, model, graded, scores = drawn
    learner = replace(settings.learner, divide_by_std=False, leave_one_out=True, aggregation="constant")
    advantages = completion_advantages(graded.rewards, learner)[:, None] * torch.ones_like(scores.logprobs)
    index = torch.arange(4, 12)
    found = gradient(model, graded, scores, advantages, index, learner, 1.0)
    rewards = graded.rewards.view(4, 4)
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / 3
    model.zero_grad(set_to_none=True)
    logprobs = score_completions(model, graded.batch, temperature=1.0).logprobs
    objective = ((rewards - others).view(-1, 1) * logprobs * graded.batch.completion_mask)[index].sum(dim=1).mean()
    objective.backward()
    expected = torch.cat([one.grad.flatten() for one in model.parameters()]).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def test_every_arm_weighs_tokens_with_mean_one(drawn) -> None:
    _, arms, task, model, graded, scores = drawn
    mask = graded.batch.reasoning_mask & graded.batch.has_answer[:, None]
    for name, settings in arms.items():
        settings = replace(settings, learner=replace(settings.learner, num_generations=4))
        weights = credited(settings, model, task, graded, scores).token_weights
        assert torch.all(weights[~mask] == 1), name
        assert float(weights[mask].mean()) == pytest.approx(1, abs=1e-5), name
    causal = graded.marks["causal"] & mask
    weights = credited(arms["oracle_causal"], model, task, graded, scores).token_weights
    assert weights[causal].min() > 10 * weights[mask & ~causal].max()  # absolute threshold: floor 0.1 against 1 + beta


def test_completions_earn_what_the_configuration_says() -> None:
    """With reward=length, which is not the verifier's 0 or 1."""
    short = ["overrides=['reward=length','learner.num_generations=2']", "units=6", "prompts=1"]
    cfg = config("gradient_signal", *short, "batches=[1]", "judged=1")
    settings = prepared("gradient_signal", *short, "batches=[1]", "judged=1")["grpo"]
    tokenizer = build_tokenizer(1024)
    graded = draw_graded(cfg, settings, untaught(tokenizer), Task(tokenizer, "####"))
    lengths = graded.batch.completion_lengths
    assert len(graded.batch) == 12
    assert lengths.unique().numel() > 1
    earned = [terms["length"] for terms in graded.terms]
    assert graded.rewards.tolist() == pytest.approx([settings.reward["length"]["weight"] * one for one in earned])
    assert len(set(earned)) > 1


def test_some_coordinates_of_each_gradient_are_looked_at(tmp_path, monkeypatch) -> None:
    """Ratios do not change their scale with it; a gain, which is a sum over parameters, is brought to that of all."""
    settings, tokenizer = small(prepared("gradient_signal")["grpo"]), build_tokenizer(1024)
    untaught(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    parameters, seen = untaught(tokenizer).num_parameters(), []
    monkeypatch.setattr(gradient_signal, "drawn", lambda _, __, model, task: demonstrations(task, model.device))
    table = gradient_signal.signal_table
    monkeypatch.setattr(
        gradient_signal, "signal_table", lambda *given, **how: seen.append((given, how)) or table(*given, **how)
    )
    for count in ("null", str(parameters // 4)):
        cfg = config("gradient_signal", "units=6", f"coordinates={count}")
        gradient_signal.measure(cfg, {"grpo": settings}, tmp_path, lambda _: None)
    ((whole,), of_all), ((some,), of_some) = seen
    chosen = coordinates(parameters, parameters // 4, seed=1)
    assert whole["grpo"].shape == (6, parameters)
    np.testing.assert_array_equal(some["grpo"], whole["grpo"][:, chosen])
    assert of_some["lr"] / of_all["lr"] == pytest.approx(4, rel=1e-3)


def test_coordinates_are_different_ones_in_order() -> None:
    chosen = coordinates(1000, 300, seed=1)
    assert len(set(chosen.tolist())) == 300
    assert (np.diff(chosen) > 0).all()
    assert (chosen[0], chosen[-1]) < (20, 1000)
    assert chosen[-1] > 980
    assert chosen.tolist() != coordinates(1000, 300, seed=2).tolist()
    for count in (None, 1000, 2000):
        assert coordinates(1000, count, seed=1).tolist() == list(range(1000))
