"""examples/oar_in_one_file.py is the method: what it computes is what the repository computes."""

import random
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from oar.common.seeding import generator
from oar.config import TrainConfig, validated
from oar.learner.credit import given_credit
from oar.learner.update import LossBatch, accumulate_gradient
from oar.method import (
    AnswerMeanProbe,
    CompletionBatch,
    CreditAssigner,
    GradientImportance,
    PerturbationImportance,
    Segments,
    collate,
    group_advantages,
    make_gate,
    score_completions,
)
from tests.config.test_config import composed

FILE = Path(__file__).parents[1] / "examples" / "oar_in_one_file.py"
GATE = {"tau": 0.4, "beta": 2.0, "floor": 0.1, "threshold": "quantile"}
ESTIMATORS = {"oar_p": PerturbationImportance(), "oar_g": GradientImportance()}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = spec_from_file_location("oar_in_one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["oar_in_one_file"] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(example: ModuleType) -> torch.nn.Module:
    made = example.make_model(seed=3)
    example.teach(made, 12, random.Random(3))
    return made


def problems(example: ModuleType) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and completions of several lengths: two have no answer, one no EOS."""
    rng = random.Random(5)
    drawn = [example.problem(rng) for _ in range(6)]
    completions = [[*example.encode(solution), example.EOS] for _, solution, _ in drawn]
    completions[1] = completions[1][:9]
    completions[2] = [token for token in completions[2] if token != example.MARKER]
    completions[3] = completions[3][:-1]
    return [example.encode(question) for question, _, _ in drawn], completions


def ours(example: ModuleType) -> CompletionBatch:
    prompts, completions = problems(example)
    segments = []
    for completion in completions:
        answer, marker = example.answer_of(completion), len(completion) - 1
        if answer:
            marker = len(completion) - 1 - completion[::-1].index(example.MARKER)
        segments.append(Segments(marker, marker + 1, marker + 1 + len(answer)) if answer else None)
    logprobs = [[-1.0] * len(completion) for completion in completions]
    return collate(prompts, completions, logprobs, segments, pad_id=example.PAD)


def completion_part(values: Tensor, batch: CompletionBatch) -> Tensor:
    """(B, L) of the example as (B, T) of the repository."""
    width, found = batch.completion_mask.shape[1], torch.zeros(batch.completion_mask.shape)
    for row, start in enumerate(batch.prompt_lengths.tolist()):
        part = values[row, start : start + width]
        found[row, : len(part)] = part
    return found * batch.completion_mask


@pytest.mark.parametrize("name", ESTIMATORS)
def test_importance_weights_and_gradient_are_the_repositorys(
    name: str, example: ModuleType, model: torch.nn.Module
) -> None:
    batch, theirs = ours(example), example.collate(*problems(example))
    advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), 3)
    assert torch.allclose(example.group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]), 3), advantages)
    with torch.no_grad():
        scores = score_completions(model, batch, temperature=1.0)
    seeds = list(range(70, 76))
    assigner = CreditAssigner(ESTIMATORS[name], make_gate(**GATE), AnswerMeanProbe())
    credit = assigner(model, batch, scores, advantages, seeds=seeds)

    credited = batch.has_answer.nonzero()[:, 0]
    assert credited.tolist() == [0, 3, 4, 5]
    some = example.rows(theirs, credited)
    if name == "oar_p":
        importance = example.oar_p(model, some)
    else:
        noise = torch.zeros(*some.ids.shape, model.config.hidden_size)
        for row, place in enumerate(credited.tolist()):
            own = some.reasoning[row]
            drawn = torch.randn(1, int(own.sum()), model.config.hidden_size, generator=generator(seeds[place], "noise"))
            noise[row, own] = 1e-3 * drawn[0]
        importance = example.oar_g(model, some, noise)
    weights = torch.ones(theirs.ids.shape)
    weights[credited] = example.gate(importance, some.reasoning)

    found = completion_part(torch.zeros(theirs.ids.shape).index_put((credited,), importance), batch)
    largest = float(credit.token_importance.max())
    assert largest > 0
    # OAR-G is a difference of two forwards that differ by a thousandth: float32 keeps a few of its digits.
    digits = 2e-2 if name == "oar_g" else 1e-3
    torch.testing.assert_close(found, credit.token_importance, atol=digits * largest, rtol=0)
    own_weights = completion_part(weights, batch)
    torch.testing.assert_close(own_weights, credit.token_weights * batch.completion_mask, atol=2 * digits, rtol=0)

    # The gradient, from the example's weights on both sides.
    model.zero_grad()
    new = example.logprobs(model, theirs)
    example.policy_loss(new, new.detach(), weights * advantages[:, None], theirs.completion).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    token_advantages = advantages[:, None] * own_weights
    accumulate_gradient(
        model,
        None,
        LossBatch.of(batch, advantages),
        torch.arange(6),
        validated(composed(), TrainConfig).learner,
        temperature=1.0,
        max_completion_length=example.MAX_NEW_TOKENS,
        credit=given_credit(scores.logprobs, token_advantages).lookup,
    )
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient, expected, atol=1e-6 + 1e-4 * float(expected.abs().max()), rtol=1e-4)
    assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize(
    "method", ["oar_g", *(pytest.param(name, marks=pytest.mark.slow) for name in ("oar_p", "grpo"))]
)
def test_it_runs_alone(method: str) -> None:
    command = [sys.executable, str(FILE), "--method", method, "--teach", "2", "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "step   1/1  reward" in done.stdout


def test_it_is_one_file_of_torch() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 300
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= sys.stdlib_module_names | {"torch", "transformers"}
