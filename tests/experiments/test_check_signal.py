"""The check of a signal finds what breaks the contract, and the worked example of docs/OWN_SIGNAL.md works as it stands."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hydra import initialize_config_dir
from torch import Tensor

from experiments.check_signal import CONTRACT, complaint, shown
from experiments.shared.credited import planned_arms
from oar.command_line.overrides import CONF
from oar.common.errors import ConfigError
from oar.integrations.methods import estimator_named
from oar.method.importance import (
    CreditInputs,
    EntropyBonusWeights,
    EntropyImportance,
    GradientImportance,
    GradientNormImportance,
    GrailWeights,
    HighEntropyWeights,
    PerturbationImportance,
    RandomImportance,
    ShearWeights,
    TokenBaseline,
)
from oar.method.probes import AnswerMeanProbe
from tests.learner.own_methods import AgainstTheGroup
from tests.models import credit_inputs, random_batch
from tests.own_signal import write_own_signal
from tests.programs import run

ROOT = Path(__file__).parents[2]
Signal = Callable[[CreditInputs], Tensor]


def broken_parts(signal: Signal) -> list[str]:
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    inputs = credit_inputs(random_batch(0), AnswerMeanProbe())
    inputs = replace(inputs, advantages=signs, groups=torch.zeros(4), rewards=signs)
    found = {what: complaint(holds, signal, inputs) for what, holds in CONTRACT.items()}
    return [problem for problem in found.values() if problem]


@pytest.mark.parametrize(
    "signal",
    [
        PerturbationImportance(),
        GradientImportance(),
        GradientNormImportance(),
        EntropyImportance(),
        RandomImportance(),
        GrailWeights(rollout_symmetry="both"),
        EntropyBonusWeights(),
        HighEntropyWeights(),
        ShearWeights(window=4, stride=2),
        TokenBaseline(),
    ],
)
def test_our_own_signals_keep_the_contract(signal: Signal) -> None:
    assert broken_parts(signal) == []


def entropy(inputs: CreditInputs) -> Tensor:
    return inputs.scores.entropy * inputs.batch.reasoning_mask


def trains_the_policy(inputs: CreditInputs) -> Tensor:
    next(inputs.model.parameters()).data.add_(0.1)
    return entropy(inputs)


def leaves_gradients(inputs: CreditInputs) -> Tensor:
    with torch.enable_grad():
        inputs.model(input_ids=inputs.batch.input_ids).logits.sum().backward()
    return entropy(inputs)


BROKEN: dict[str, tuple[Signal, str]] = {
    "shape": (lambda given: torch.zeros(2, 3), r"of shape \(4, \d+\) in torch.float32, but gave \(2, 3\)"),
    "precision": (lambda given: entropy(given).double(), "float64"),
    "sign": (lambda given: -entropy(given), "must be finite, 0 or more"),
    "not a number": (lambda given: entropy(given) / 0.0 * 0.0, "must be finite"),
    "mask": (lambda given: given.scores.entropy + 1.0, "not 0 outside the reasoning mask"),
    "nothing": (lambda given: entropy(given) * 0, "0 everywhere"),
    "seeds": (lambda given: torch.rand(given.batch.reasoning_mask.shape) * given.batch.reasoning_mask, "same seeds"),
    "others": (lambda given: entropy(given) / entropy(given).sum(), r"completion 0 alone .* differ by \d"),
    "weights": (trains_the_policy, "changes the policy's weights"),
    "gradient": (leaves_gradients, "changes the gradient of the policy"),
    "error": (lambda given: torch.zeros(given.batch.nothing), r"raises AttributeError in .*test_check_signal.py:\d+: "),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named(what: str) -> None:
    signal, problem = BROKEN[what]
    assert any(re.search(problem, found) for found in broken_parts(signal)), broken_parts(signal)


class Weights:
    """Of every token, the answer's included; 0.5 where nothing is known."""

    gives = "weights"

    def __init__(self, low: float = 0.5) -> None:
        self.low = low

    def __call__(self, inputs: CreditInputs) -> Tensor:
        return self.low + inputs.scores.entropy


def test_weights_and_advantages_are_asked_for_what_they_are() -> None:
    assert broken_parts(Weights()) == []
    (problem,) = broken_parts(Weights(low=-9.0))[:1]
    assert "weights not negative" in problem
    signed = Weights(low=-9.0)
    signed.gives = "advantages"
    assert broken_parts(signed) == []


class FirstAgainstLast(AgainstTheGroup):
    def __call__(self, inputs: CreditInputs) -> Tensor:
        weights = inputs.scores.entropy.clone()
        weights[0] += 1.0
        return weights


def test_a_signal_that_compares_may_look_at_others_but_not_at_their_order() -> None:
    groups = torch.tensor([0, 0, 1, 1])
    inputs = replace(credit_inputs(random_batch(0), AnswerMeanProbe()), groups=groups)
    assert [complaint(holds, AgainstTheGroup(), inputs) for holds in CONTRACT.values()] == [None] * len(CONTRACT)
    found = [complaint(holds, FirstAgainstLast(), inputs) for holds in CONTRACT.values()]
    assert [problem for problem in found if problem and re.search(r"in another order .* differs by \d", problem)]


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    write_own_signal(tmp_path)
    return tmp_path


def test_the_class_of_the_page_keeps_the_contract_in_trl_too(own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own_files)
    assert broken_parts(estimator_named("my_signal.EntropyChange", "pad")) == []
    with pytest.raises(ConfigError, match=r"my_signal\.EntropyChance, which is not there"):
        estimator_named("my_signal.EntropyChance", "pad")
    assert estimator_named("tests.experiments.test_check_signal.Weights", "pad").gives == "weights"
    monkeypatch.setattr(Weights, "gives", "advantages")
    assert estimator_named("tests.experiments.test_check_signal.Weights", "pad").gives == "advantages"


def program(name: str, folder: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    own = ("method=entropy_change", "allow_targets=[my_signal]", *overrides, "--config-dir", str(folder / "my_conf"))
    command = [sys.executable, "-m", f"experiments.{name}", *own]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_what_a_run_refuses_is_refused() -> None:
    code, output = run("check_signal", "method=oar_s", "probe=reference")
    assert code == 2, output
    assert "probe must be one that reads the answer" in output


@pytest.mark.system
def test_the_page_works_as_it_stands(own_files: Path) -> None:
    done = program("check_signal", own_files, "problems=4")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["method"], answer["broken"]) == ("entropy_change", [])
    assert 0 < answer["recall_of_causal_tokens"] < 1
    assert re.search(
        rf"^{re.escape(shown(answer['cost_in_scoring_forwards']))} +cost in scoring forwards", done.stdout, re.MULTILINE
    )


def test_two_digits_are_shown() -> None:
    assert [shown(value) for value in (0.00423, 0.456, 1.0, 123.4)] == ["0.0042", "0.46", "1", "120"]


@pytest.mark.parametrize("page", ["OWN_SIGNAL.md", "SWEEPS.md"])
def test_an_arm_of_a_page_is_planned(page: str, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own_files)
    lines = [line for line in (ROOT / "docs" / page).read_text().splitlines() if "+arms.mine=" in line]
    assert lines
    with initialize_config_dir(str(CONF), version_base=None):
        for line in lines:
            (how,) = re.findall(r"\+arms\.mine=(\[.*?'\])", line)
            arms = planned_arms({"mine": yaml.safe_load(how)}, [f"hydra.searchpath=[file://{own_files / 'my_conf'}]"])
            assert arms["mine"].method.name == "entropy_change"
            assert "--config-dir my_conf" in line


def test_the_page_plans(own_files: Path) -> None:
    done = program("plan", own_files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "entropy_change" in done.stdout
