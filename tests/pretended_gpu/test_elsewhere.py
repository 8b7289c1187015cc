"""Where else a model is asked for credit on a GPU: the inspector, signals that are examined, gradients, TRL's trainer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.gradient_signal import __main__ as gradient_signal
from experiments.gradient_signal.cosines import ALIGNMENT, ALIGNMENT_RATIO
from experiments.inspect_credit.signals import model_signals
from experiments.reward_model import learned, score
from experiments.signals.disturbance import disturbance, replaced_tokens
from oar.analysis.signals.examine import Subject, examine, gated, signal_importance
from oar.tasks.words import build_tokenizer
from tests.analysis.test_examine import PROBLEM, RIGHT, SILENT, WRONG, model, rollout, settings, task
from tests.experiments.measurements import config, prepared
from tests.experiments.test_gradient_signal_measured import demonstrations, small, untaught
from tests.experiments.test_inspect_signals import STEP, kept
from tests.experiments.test_reward_model import SETTINGS, sequences
from tests.models import tiny_model
from tests.pretended_gpu import PretendedGpu, pretended_gpu

METHODS = ("oar_g", "oar_p_routes", "random", "shuffled", "oracle_error")


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


def subject() -> Subject:
    rollouts = [rollout(text) for text in (SILENT, RIGHT, WRONG)]
    return examine(model().to("cuda"), task(), [PROBLEM], [rollouts], settings())  # type: ignore[arg-type]


def test_signals_that_are_examined(gpu: PretendedGpu) -> None:
    found = subject()
    assert found.masks.is_cuda
    for method in METHODS:
        signal = settings(f"method={method}")
        gated(found, signal_importance(found, signal), signal)


@pytest.mark.parametrize("kind", ["resampled", "knockout", "mean_embedding"])
def test_what_a_counterfactual_disturbs(kind: str, gpu: PretendedGpu) -> None:
    inputs = subject().inputs
    replaced = replaced_tokens(kind, inputs)
    disturbance(inputs, 0, kind, replaced[0])


def test_the_inspector(tmp_path: Path) -> None:
    cfg = settings()
    samples = kept(tmp_path, cfg, RIGHT, WRONG, SILENT)
    methods = {name: settings(f"method={name}").method for name in METHODS}
    with pretended_gpu():
        model_signals(model().to("cuda"), task(), samples, cfg, methods, step=STEP, source="here", notes=[])  # type: ignore[arg-type]


def test_gradients_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config("gradient_signal", "units=6")
    arms = {
        name: small(settings) for name, settings in prepared("gradient_signal").items() if name in ("grpo", "oar_p")
    }
    tokenizer = build_tokenizer(1024)
    untaught(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(gradient_signal, "drawn", lambda _, __, model, task: demonstrations(task, model.device))
    with pretended_gpu():
        table = gradient_signal.measure(cfg, arms, tmp_path, lambda _: None)
    assert np.isfinite(table.loc[~table["metric"].isin([ALIGNMENT, ALIGNMENT_RATIO]), "value"]).all()
    assert np.isfinite(table["value"]).mean() > 0.5  # noise hides some lengths of an untaught model's gradients


@pytest.mark.parametrize("method", ["grpo", "oar_g", "oar_p"])
def test_trl(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    from accelerate.state import AcceleratorState

    from tests.integrations.completions import trainer

    monkeypatch.setenv("CI", "1")  # else TRL tells its makers the name of the GPU
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate asks for a GPU once in a process
    try:
        with pretended_gpu():
            made = trainer(tmp_path, method=method, use_cpu=False)
            assert made.model.device.type == "cuda"
            made.train()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_a_reward_model_is_taught(gpu: PretendedGpu) -> None:
    model = learned(SETTINGS, tiny_model().to("cuda"), sequences(0), padding=0)  # type: ignore[arg-type]
    assert score(model, sequences(1), torch.arange(4)).is_cuda
