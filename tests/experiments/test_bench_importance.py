"""The benchmark of importance: what it refuses, what it counts, and that every number it prints was measured."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.bench_importance import __main__ as bench_importance
from experiments.bench_importance.steps import one_apart, step_of_each
from experiments.bench_importance.update import (
    PlainImportance,
    Synthetic,
    measure_memory,
    measure_seconds,
    timed_rounds,
)
from experiments.shared.counted_tokens import counted_tokens
from experiments.shared.fresh_process import in_fresh_process
from experiments.shared.made_up import made_up_model
from experiments.shared.peak_memory import peak_memory
from oar.common.clock import Clock
from oar.common.errors import OarError
from oar.config import TrainConfig, validated
from oar.learner.credit import given_credit
from oar.learner.distributed import ALONE
from oar.learner.update import LossBatch, accumulate_gradient
from oar.method.importance import GradientImportance, GradientNormImportance, PerturbationImportance, UniformImportance
from oar.method.probes import AnswerMeanProbe
from oar.model.load import load_policy
from tests.config.test_config import composed
from tests.experiments.measurements import prepared
from tests.learner.on_ranks import config as on_ranks_config
from tests.learner.on_ranks import learner_of, start_model
from tests.models import MARKER, credit_inputs, random_batch, tiny_model
from tests.plain_oar_p import naive_oar_p

ARCHITECTURE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 256,
    "rope_theta": 1e4,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
CASE = Synthetic(
    size="tiny",
    architecture=ARCHITECTURE,
    dtype="float32",
    device="cpu",
    length=20,
    completions=3,
    prompt_tokens=5,
    answer_tokens=2,
    seed=1,
    cfg=validated(composed("probe=as_mean"), TrainConfig),
)
# Tokens: of 20, less answer, marker and EOS; marker and answer but its last; with the prompt.
REASONING, TAIL, ROW = 16, 2, 25
SMALL = ("learner.batch_size=8",)


# One update.


def test_the_update_is_the_learners() -> None:
    update = CASE.update({})
    data = update.run(UniformImportance(), Clock())
    measured = torch.cat([parameter.grad.flatten() for parameter in update.model.parameters()])

    update.model.zero_grad(set_to_none=True)
    uniform = update.advantages[:, None] * torch.ones_like(data.old_logprobs)
    accumulate_gradient(
        update.model,
        None,
        LossBatch.of(update.batch, update.advantages),
        torch.arange(3),
        CASE.cfg.learner,
        temperature=1.0,
        max_completion_length=20,
        credit=given_credit(data.old_logprobs, uniform).lookup,  # on the policy
    )
    gradient = torch.cat([parameter.grad.flatten() for parameter in update.model.parameters()])
    assert gradient.abs().max() > 1e-3
    assert torch.allclose(measured, gradient, atol=1e-6)
    # With credit it is another one.
    update.run(PerturbationImportance(), Clock())
    weighted = torch.cat([parameter.grad.flatten() for parameter in update.model.parameters()])
    assert (weighted - gradient).abs().max() > 1e-4


def test_plain_is_the_same_signal() -> None:
    given = credit_inputs(random_batch(8), AnswerMeanProbe())
    naive = naive_oar_p(given.model, given.batch, "as_mean", MARKER)
    found = PlainImportance(3 * given.batch.input_ids.shape[1])(given)
    torch.testing.assert_close(found, naive, rtol=1e-4, atol=1e-6)
    assert found.max() > 1e-3


@pytest.mark.parametrize(
    ("estimator", "tokens"),
    [
        (UniformImportance(), 0),
        (GradientNormImportance(), 0),  # the update's forward is shared
        (GradientImportance(), 3 * (REASONING + TAIL)),
        (PerturbationImportance(window=0), 3 * REASONING * (1 + TAIL)),
        (PerturbationImportance(budget=4, window=0), 3 * 4 * (1 + TAIL)),
        (PlainImportance(2048), 3 * (1 + REASONING) * (ROW - 1)),  # EOS is cut off; one more row is the clean one
    ],
)
def test_every_token_is_counted_once(estimator: Any, tokens: int) -> None:
    update = CASE.update({})
    with counted_tokens(update.model) as count:
        update.run(estimator, Clock())
    assert count.forward == (before := 3 * ROW + tokens)
    update.run(estimator, Clock())
    assert count.forward == before, "counts on after the block"


@dataclass
class FakeUpdate:
    """Takes what each method says it takes."""

    order: list[str]

    def seconds(self, estimator: Any) -> tuple[float, float]:
        name, whole = estimator
        self.order.append(name)
        return whole, whole / 2


def test_rounds_take_turns_and_slow_methods_leave_early() -> None:
    update = FakeUpdate([])
    methods: Any = {"slow": ("slow", 3.0), "middle": ("middle", 1.0), "fast": ("fast", 0.25)}
    found = timed_rounds(update, methods, rounds=4, method_seconds=2.0)  # type: ignore[arg-type]
    assert found["slow"] == {"update": [3.0], "credit": [1.5]}
    assert found["middle"]["update"] == [1.0, 1.0]
    assert found["fast"]["credit"] == [0.125] * 4
    assert update.order == ["slow", "middle", "fast", "middle", "fast", "fast", "fast"]


@pytest.mark.parametrize("budget", [None, 1])
def test_what_is_expected_of_counterfactuals_and_of_nothing_else(budget: int | None) -> None:
    update = CASE.update({"": PerturbationImportance()})
    assert update.expected_seconds(PerturbationImportance(budget=budget)) > 0
    assert update.expected_seconds(GradientImportance()) == 0


def test_what_would_take_too_long_is_left_out() -> None:
    methods = {"grpo": UniformImportance(), "oar_p": PerturbationImportance(), "plain": PlainImportance(2048)}
    found = measure_seconds(CASE, methods, rounds=1, method_seconds=1.0, limit_s=0.0)
    assert list(found["seconds"]) == ["grpo"]
    assert set(found["skipped"]) == {"oar_p", "plain"}
    assert all(seconds > 0 for seconds in found["skipped"].values())
    found = measure_seconds(CASE, methods, rounds=2, method_seconds=60.0, limit_s=60.0)
    assert not found["skipped"]
    for name, seconds in found["seconds"].items():
        assert len(seconds["update"]) == 2, name
        assert all(0 < credit < whole for credit, whole in zip(seconds["credit"], seconds["update"], strict=True))


# Fresh processes and memory.


def refuse() -> dict[str, Any]:
    raise OarError("Too much was asked.")


def die() -> dict[str, Any]:
    os._exit(3)


def test_a_peak_is_seen_though_it_is_over_and_then_forgotten() -> None:
    mib = 2**20
    with peak_memory("cpu") as mark:
        taken = torch.ones(mib // 4)
        part = taken.view(2, -1)[0].mul_(2)
        assert mark() == (mib, mib), "a view or a change in place takes nothing"
        more = taken + 1
        del more
        assert mark() == (mib, 2 * mib)
        assert mark() == (mib, mib)
        del taken
        assert mark() == (mib, mib), "its memory is still needed"
        del part
        assert mark() == (0, mib)


def test_what_is_counted_is_what_torch_takes(tmp_path: Path) -> None:
    """torch's profiler notes each piece that the allocator gives and takes back, those inside a kernel as well."""
    update = CASE.update({})
    update.run(PerturbationImportance(), Clock())
    update.model.zero_grad(set_to_none=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        update.run(PerturbationImportance(), Clock())
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    pieces = [event for event in events if event["name"] == "[memory]"]
    allocated = np.cumsum([event["args"]["Bytes"] for event in sorted(pieces, key=lambda event: event["ts"])])

    with peak_memory("cpu") as mark:
        update = CASE.update({})
        before, _ = mark()
        update.run(PerturbationImportance(), Clock())
        assert mark()[1] - before == pytest.approx(int(allocated.max()), rel=0.02)


def test_what_a_case_raises_is_raised_here_and_a_death_is_told() -> None:
    with pytest.raises(OarError, match="Too much was asked"):
        in_fresh_process(refuse)
    with pytest.raises(OarError, match="exit code 3"):
        in_fresh_process(die)


def test_memory_tells_the_credit_from_the_update() -> None:
    gradients = (
        sum(parameter.numel() for parameter in made_up_model(ARCHITECTURE, "float32", "cpu", 1).parameters()) * 4
    )
    grpo, exact = (
        in_fresh_process(measure_memory, CASE, how) for how in (UniformImportance(), PerturbationImportance())
    )
    assert grpo["tokens"] == 3 * ROW
    assert [len(row) for row in exact["importance"]] == [REASONING] * 3
    assert exact["weights"][0] != grpo["weights"][0] == [1.0] * REASONING
    assert 10 * grpo["credit_peak"] < gradients < grpo["update_peak"]
    assert gradients < exact["credit_peak"] < exact["update_peak"]


# Whole steps, and what is kept.


class FakeLearner:
    """Trains by making its weights larger, and notes what it was given."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.model, self.sync, self.step = tiny_model(), self, -1
        self.log, self.name = log, name

    def push(self, model: torch.nn.Module, version: int) -> None:
        self.log.append((self.name, version, float(next(model.parameters()).detach().sum())))

    def training_step(self) -> Any:
        self.log.append((self.name, self.step))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += 1
        return type("Report", (), {"seconds": {"total": 1.0}})


def test_every_method_steps_from_the_same_weights_in_turn() -> None:
    log: list[Any] = []
    learners: Any = {name: FakeLearner(log, name) for name in ("grpo", "oar_g", "oar_p")}
    start = float(next(learners["grpo"].model.parameters()).detach().sum())
    for step in range(2):
        assert list(step_of_each(learners, step)) == ["grpo", "oar_g", "oar_p"]
    pushes, steps = [entry for entry in log if len(entry) == 3], [entry for entry in log if len(entry) == 2]
    assert steps == [("grpo", 0), ("oar_g", 0), ("oar_p", 0), ("oar_g", 1), ("oar_p", 1), ("grpo", 1)]
    assert [(name, version) for name, version, _ in pushes] == steps
    assert {weights for _, _, weights in pushes} == {start}


def test_a_step_by_itself_tells_what_stands_beside_the_policy(tmp_path: Path) -> None:
    start = start_model(tmp_path)
    weights = load_policy(start, "float32").state_dict()
    size = sum(value.nbytes for value in weights.values())

    def apart(name: str) -> dict[str, Any]:
        cfg = on_ranks_config(*SMALL, f"method={name}")
        return one_apart(lambda: learner_of(cfg, start, ALONE), weights, "cpu")

    grpo, rlsd, prime, vineppo = (apart(name) for name in ("grpo", "rlsd", "prime", "vineppo"))
    assert 4 * size < grpo["peak"] < 20 * size  # weights, gradients, two moments; activations of a micro-batch
    assert grpo == apart("grpo")
    assert rlsd["peak"] - grpo["peak"] > size  # the starting model, and its forward while the update's graph is there
    assert prime["peak"] - grpo["peak"] > 4 * size  # the starting model, and another with a gradient and two moments
    assert {one["length"] for one in (grpo, rlsd, prime, vineppo)} == {grpo["length"]}
    assert grpo["continuation_tokens"] is None
    assert vineppo["continuation_tokens"] > 0


def test_a_case_is_measured_once_by_the_same_code(tmp_path: Path) -> None:
    found, told = prepared("bench_importance", folder=tmp_path), iter(range(9))

    def case(length: int) -> int:
        return found.case("one", {"length": length}, lambda: {"value": next(told)})["value"]

    assert [case(64), case(64), case(65)] == [0, 0, 1]
    assert found.kept == 1
    found.code = "other code"
    assert case(64) == 2


def test_an_interrupted_case_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, called = prepared("bench_importance", "synthetic_methods=[grpo,oar_p,window8]", folder=tmp_path), []

    def measured(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        called.append(function.__name__)
        if len(called) == 3:
            raise KeyboardInterrupt
        seconds = {name: {"update": [1.0], "credit": [1.0]} for name in ("grpo", "oar_p")}
        return {"seconds": seconds, "skipped": {"plain": 9.0}} if function is measure_seconds else {"tokens": 1}

    monkeypatch.setattr(bench_importance, "in_fresh_process", measured)
    with pytest.raises(KeyboardInterrupt):
        bench_importance.measure_synthetic(found, CASE)
    whole = bench_importance.measure_synthetic(found, CASE)
    assert called == ["measure_seconds", *["measure_memory"] * 3], "seconds and one memory were there already"
    assert set(whole["memory"]) == {"grpo", "oar_p"}, "what was left out has no memory either"
    bench_importance.measure_synthetic(found, replace(CASE, length=21))
    assert called[4] == "measure_seconds"
