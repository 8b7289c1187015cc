"""Completions that a real step credited, kept and read back: what any method makes of them under the same and other weights."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.gpu_check.settings import METHODS, OF_SHEETS
from experiments.inspect_credit.page import InspectorPage, inspector_html
from experiments.inspect_credit.signals import LOGGED, logged_signals, model_signals
from oar.common.errors import DataError
from oar.config import TrainConfig, validated
from oar.learner.collect import grade_rollouts
from oar.learner.credit import Credited
from oar.learner.distributed import ALONE
from oar.learner.samples import Sample, read_samples, sample_rows
from oar.learner.step import Clock, Learner, StepReport
from oar.learner.update import LossBatch
from oar.method.advantages import group_advantages
from oar.model.load import load_policy
from oar.runs.tracking import Tracker
from oar.tasks.sheets.tokenizer import build_tokenizer as sheets_tokenizer
from oar.tasks.words import build_tokenizer
from tests.analysis.test_examine import PROBLEM, RIGHT, SILENT, WRONG, model, rollout, task
from tests.config.test_config import composed
from tests.learner.on_ranks import config as on_ranks_config
from tests.learner.on_ranks import learner_of, start_model
from tests.models import tiny_model
from tests.pretended_gpu.steps import in_many_forwards

STEP = 7
UPDATES = STEP - 1  # that the weights had seen which drew the completions


def settings(*overrides: str) -> TrainConfig:
    return validated(composed("method=oar_g", *overrides), TrainConfig)


def kept(folder: Path, cfg: TrainConfig, *texts: str) -> list[Sample]:
    """What a run in `folder` keeps of a training step whose completions these are."""
    learner = Learner(cfg, model(), task(), None, None)  # type: ignore[arg-type]  # needs no engine for this
    learner.step = UPDATES
    graded = grade_rollouts([PROBLEM], [[rollout(text) for text in texts]], task(), torch.device("cpu"))
    data = LossBatch.of(graded.batch, group_advantages(graded.rewards, len(texts)))
    credit = learner.credit(graded, data.advantages, Clock())
    scored = learner.score(data, credit, torch.ones(len(texts), dtype=torch.bool))
    credited = Credited.joined(scored, data.loss_mask.shape, ALONE, torch.device("cpu"))
    tracker = Tracker(folder)
    tracker.resume(-1)
    tracker.log_samples(
        STEP,
        sample_rows(
            task(),
            StepReport({}, {}, graded, data.advantages, credited, torch.ones(len(texts), dtype=torch.bool)),
            len(texts),
        ),
    )
    step, samples = read_samples(folder, None)
    assert step == STEP
    return samples


def test_what_is_kept_is_all_there_is_to_know(tmp_path: Path) -> None:
    samples = kept(tmp_path, settings(), SILENT, WRONG, RIGHT)
    for sample, text, reward in zip(samples, (SILENT, WRONG, RIGHT), (0, 0, 1), strict=True):
        words = text.split()
        assert sample.tokens == words
        assert sample.completion_ids == list(rollout(text).completion_ids)
        assert sample.prompt_ids == task().encode_prompt(PROBLEM)
        assert (sample.prompt, sample.gold, sample.reward) == (PROBLEM.question, "10", reward)
        np.testing.assert_allclose(sample.old_logprobs, rollout(text).sampler_logprobs, rtol=1e-4)
        assert len(sample.entropy) == len(sample.token_weights) == len(sample.token_importance) == len(words)
    silent, wrong, right = samples
    assert silent.segments is None
    assert silent.reasoning_tokens == 0
    start = WRONG.split().index("####")
    assert wrong.segments == [start, start + 1, start + 3]
    assert wrong.reasoning_tokens == start
    assert wrong.marks["error"] == [WRONG.split().index("4")]
    assert [RIGHT.split()[at] for at in right.marks["causal"][:6]] == ["7", "7", "+", "3", "1", "0"]
    # Mean 0 and deviation 1 over (0, 0, 1): -1/3 and 2/3 over sqrt(1/3).
    assert (silent.advantage, right.advantage) == pytest.approx((-1 / 3 / 3**-0.5, 2 / 3 / 3**-0.5), rel=1e-3)


def test_a_method_that_looks_at_more_than_a_run_keeps_is_named(tmp_path: Path) -> None:
    cfg, notes = settings(), list[str]()
    methods = {name: settings(f"method={name}").method for name in ("rlsd", "oar_gn", "mig")}
    samples = kept(tmp_path, cfg, SILENT, WRONG, RIGHT)
    found = model_signals(model(), task(), samples, cfg, methods, step=STEP, source="x", notes=notes)
    assert [signal.name for signal in found][:1] == ["oar_gn"]
    assert {"rlsd", "mig"}.isdisjoint(signal.name for signal in found)
    assert [note.split(" is not computed anew: ")[0] for note in notes] == ["rlsd", "mig"]
    assert ["privileged context" in note for note in notes] == [True, False]


def test_under_the_weights_that_drew_them_the_method_gives_what_was_logged(tmp_path: Path) -> None:
    """The noise of OAR-G, the probe of that step and the gate are the run's: nothing but rounding is between the two."""
    cfg = settings("probe.warmup_steps=7")  # so the step before the warm-up's end
    samples = kept(tmp_path, cfg, WRONG, SILENT, RIGHT)
    logged, *_ = logged_signals(samples, cfg, [])
    assert (logged.name, logged.source, logged.kind) == ("oar_g", LOGGED, "weight")
    found = {
        signal.name: signal
        for signal in model_signals(
            model(), task(), samples, cfg, {"oar_g": cfg.method}, step=STEP, source="same weights", notes=[]
        )
    }
    for row, sample in enumerate(samples):
        np.testing.assert_allclose(found["oar_g"].importance[row], logged.importance[row], rtol=1e-2)
        np.testing.assert_allclose(found["oar_g"].values[row], logged.values[row], rtol=1e-2)
        np.testing.assert_allclose(found["ratio"].values[row], 1, rtol=1e-4)
        np.testing.assert_allclose(found["entropy"].values[row], sample.entropy, rtol=1e-3)
    assert not np.concatenate(found["clipped"].values).any()
    again = found["oar_g"].thresholds
    assert (again[1], logged.thresholds[1]) == (None, None)  # no answer
    assert (again[0], again[2]) == pytest.approx((logged.thresholds[0], logged.thresholds[2]), rel=1e-2)
    another = model_signals(
        model(), task(), samples, cfg, {"oar_g": cfg.method}, step=STEP + 1, source="the step after", notes=[]
    )
    assert not np.allclose(another[0].importance[0], logged.importance[0], rtol=0.1)


def test_weights_without_a_gate_are_made_again_and_those_of_a_whole_step_are_not(tmp_path: Path) -> None:
    cfg = settings("method=grail")
    samples = kept(tmp_path, cfg, WRONG, SILENT, RIGHT)
    methods = {"grail": cfg.method, "shear": settings("method=shear").method}
    found = model_signals(model(), task(), samples, cfg, methods, step=STEP, source="same weights", notes=[])
    (again,), (logged, *_) = [one for one in found if one.kind == "weight"], logged_signals(samples, cfg, [])
    assert again.name == "grail"
    assert not any(again.importance), "there is no gate"
    for row in range(len(samples)):
        np.testing.assert_allclose(again.values[row], logged.values[row], rtol=1e-3)
    assert np.ptp(again.values[0]) > 0.5  # a wrong completion is reweighed, a right one is not
    assert np.ptp(again.values[2]) == 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_opens_or_says_what_is_missing(name: str, tmp_path: Path) -> None:
    """A real training step with it; what it logged, and what the weights that drew it say again."""
    words = sheets_tokenizer() if name in OF_SHEETS else build_tokenizer()
    start = start_model(tmp_path, words)
    cfg = on_ranks_config(*in_many_forwards(name), "learner.batch_size=8")
    learner = learner_of(cfg, start, ALONE)
    weights = load_policy(start, "float32")
    tracker = Tracker(tmp_path)
    tracker.resume(-1)
    tracker.log_samples(1, sample_rows(learner.task, learner.training_step(), 4))
    _, samples = read_samples(tmp_path, None)
    notes: list[str] = []
    logged = logged_signals(samples, cfg, notes)
    (advantage,) = [one for one in logged if one.kind == "advantage"]
    for values, sample in zip(advantage.values, samples, strict=True):
        assert list(values) == sample.token_advantages
    signed = learner.method.signed
    assert [one.name for one in logged if one.kind == "weight"] == ([] if signed else [name])
    again = model_signals(
        weights, learner.task, samples, cfg, {name: cfg.method}, step=1, source="the same weights", notes=notes
    )
    found = [one for one in again if one.name == name and one.kind in ("weight", "advantage")]
    reasons = [note for note in notes if note.startswith(f"{name} is not computed anew: ")]
    assert len(found) + len(reasons) == 1
    assert all(note.endswith(".") and "\n" not in note for note in notes)
    beside = learner.method.surrogate is not None or learner.method.auxiliary is not None
    assert beside == any("not shown" in note for note in notes)
    for one in found:
        for row, sample in enumerate(samples):
            if sample.advantage == 0:
                continue
            kept_values = sample.advantages if signed else sample.token_weights[: sample.reasoning_tokens]
            np.testing.assert_allclose(one.values[row], kept_values, rtol=2e-2, atol=2e-3)
    text = inspector_html(InspectorPage("A run", {}, notes, samples, [*logged, *again], {}))
    assert name in text


def test_a_signed_run_of_an_earlier_version_says_what_it_did_not_keep(tmp_path: Path) -> None:
    cfg, notes = settings("method=oar_s_advantage"), list[str]()
    new = kept(tmp_path, cfg, RIGHT, WRONG)
    samples = [replace(one, token_advantages=None, token_weights=[1.0] * len(one.tokens)) for one in new]
    advantage, *_ = logged_signals(samples, cfg, notes)
    assert (advantage.kind, set(advantage.values[0])) == ("advantage", {samples[0].advantage})
    assert "did not keep the token advantages that oar_s_advantage gave" in notes[0]


def test_under_other_weights(tmp_path: Path) -> None:
    cfg = settings("learner.clip_eps_low=0.1", "learner.clip_eps_high=0.3")
    samples = kept(tmp_path, cfg, RIGHT, WRONG)
    other = tiny_model(1, vocab=len(build_tokenizer()))
    oar_p = settings("method=oar_p").method
    weight, _, surprisal, ratio, clipped = model_signals(
        other, task(), samples, cfg, {"oar_p": oar_p}, step=STEP, source="other", notes=[]
    )
    for row, sample in enumerate(samples):
        ids, start = [*sample.prompt_ids, *sample.completion_ids], len(sample.prompt_ids)
        with torch.no_grad():
            logprobs = other(torch.tensor([ids])).logits[0].log_softmax(-1)
        now = [float(logprobs[at - 1, ids[at]]) for at in range(start, len(ids))]
        np.testing.assert_allclose(surprisal.values[row], -np.array(now), rtol=1e-4)
        expected = np.exp(np.array(now) - np.array(sample.old_logprobs))
        np.testing.assert_allclose(ratio.values[row], expected, rtol=1e-3)
        past = expected > 1.3 if sample.reward else expected < 0.9
        assert 0 < past.sum() < len(past)
        assert clipped.values[row] == past.tolist()
        assert len(weight.values[row]) == sample.reasoning_tokens
        assert sum(weight.values[row]) == pytest.approx(sample.reasoning_tokens, rel=1e-4)
        below = [value < weight.thresholds[row] for value in weight.importance[row]]
        assert 0.3 < np.mean(below) < 0.5  # the 0.4-quantile


def test_what_was_not_computed_is_not_shown_as_zero(tmp_path: Path) -> None:
    """Completions of a group without advantage are not credited by the run, but can be by the inspector."""
    cfg = settings()
    samples = kept(tmp_path, cfg, RIGHT, RIGHT)
    logged, advantage, *_ = logged_signals(samples, cfg, [])
    assert list(logged.importance) == [[], []]
    assert list(logged.thresholds) == [None, None]
    assert set(logged.values[0]) == {1.0}
    assert set(advantage.values[0]) == {0.0}
    computed, *_ = model_signals(
        model(), task(), samples, cfg, {"oar_g": cfg.method}, step=STEP, source="same weights", notes=[]
    )
    assert computed.thresholds[0] > 0


def test_the_released_loops_threshold_is_not_guessed(tmp_path: Path) -> None:
    cfg = settings("gating=released_drift")
    logged, *_ = logged_signals(kept(tmp_path, cfg, RIGHT, WRONG), cfg, [])
    assert list(logged.thresholds) == [None, None]


def test_a_model_with_other_tokens_is_refused(tmp_path: Path) -> None:
    samples = kept(tmp_path, settings(), RIGHT, WRONG)
    moved = [replace(samples[0], completion_ids=[token + 1 for token in samples[0].completion_ids])]
    with pytest.raises(DataError, match="must read the run's tokens"):
        model_signals(model(), task(), moved, settings(), {}, step=STEP, source="x", notes=[])


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no samples\.jsonl: .* tracking\.samples_every not above its learner\.steps"):
        read_samples(tmp_path, 1)
    kept(tmp_path, settings(), RIGHT, WRONG)
    with pytest.raises(DataError, match="of step 8, but holds steps 7"):
        read_samples(tmp_path, 8)
    path = tmp_path / "samples.jsonl"
    text = path.read_text()
    path.write_text(text + text[:200])  # a run that is going on
    assert len(read_samples(tmp_path, 7)[1]) == 2
    row = json.loads(text.split("\n")[0])
    del row["entropy"]
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"line 1 .*earlier version"):
        read_samples(tmp_path, 7)
