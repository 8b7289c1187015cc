"""A prompt is computed once for all its completions: no method's credit or gradient may differ from that of prompts apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oar.learner.distributed import ALONE
from oar.method.forward import logprobs
from tests.learner.on_ranks import config, learner_of
from tests.pretended_gpu.steps import METHODS, OF_SHEETS, in_many_forwards, starts

KINDS = (
    "grpo",
    "oar_p",
    "oar_p_routes",
    "oar_g",
    "oar_gn",
    "oar_ga",
    "oar_s",
    "grail",
    "shear",
    "rlsd",
    "sdpo",
    "mig",
    "prime",
)
OPTIONS = {
    "lora": ["lora=r8"],
    "recomputed": ["learner.activation_checkpointing=true"],
    "kl": ["learner.kl_coef=0.1"],
    "two_updates": ["learner.updates_per_rollout=2"],
    "parts_of_groups": ["learner.micro_batch_tokens=100"],
    "knockout": ["method=oar_p", "counterfactual=knockout"],
    "warmup": ["method=oar_p", "probe=warmup"],
    "released": ["method=grail", "method.estimator.rollout_symmetry=both", "method.estimator.leaf=middle"],
}


@pytest.fixture(scope="module")
def by_words(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return starts(tmp_path_factory.mktemp("start"))


def step(start: Path, *overrides: str) -> tuple[Tensor, Tensor]:
    """The gradient and the token advantages of the first step."""
    learner: Any = learner_of(config(*overrides), start, ALONE)
    report = learner.training_step()
    gradients = [parameter.grad.flatten() for parameter in learner.model.parameters() if parameter.grad is not None]
    return torch.cat(gradients), report.credited.token_advantages


def check(start: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    together = step(start, *overrides)
    with monkeypatch.context() as patched:
        patched.setattr(logprobs, "same_beginnings", lambda ids, _: range(len(ids)))
        apart = step(start, *overrides)
    for one, other in zip(together, apart, strict=True):
        # Weights of this model hang on importances of 1e-6 nats, which other micro-batches round as differently as that.
        assert_close(one, other, atol=1e-3 * float(other.abs().max()), rtol=0)


@pytest.mark.parametrize(
    "method", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_methods(method: str, by_words: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    check(by_words[method in OF_SHEETS], monkeypatch, *in_many_forwards(method))


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, by_words: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    check(by_words[False], monkeypatch, *OPTIONS[option])
