"""Runs whose outcome needs no answer span: what is loaded and refused, what a step credits, what is kept of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.inspect_credit.signals import logged_signals, model_signals
from oar.common.errors import ConfigError, DataError
from oar.learner.beside import Beside
from oar.learner.credit import Method
from oar.learner.distributed import ALONE
from oar.learner.samples import Sample, sample_rows
from oar.model.load import load_policy, load_scorer, refuse_as_scorer
from oar.tasks.problem import Problem
from oar.tasks.words import build_tokenizer
from tests.learner.on_ranks import config, learner_of, start_model
from tests.models import tiny_scorer


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random reward model in its folder."""
    folder = tmp_path_factory.mktemp("scorer")
    tiny_scorer(vocab=len(build_tokenizer())).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def test_what_is_loaded_scores_as_what_was_saved_and_is_frozen(scorer: Path) -> None:
    found, ids = load_scorer(str(scorer), build_tokenizer(), "float32"), torch.tensor([[2, 7, 9, 11]])
    assert found is not None
    torch.testing.assert_close(found(ids).logits, tiny_scorer(vocab=len(build_tokenizer()))(ids).logits)
    assert not any(parameter.requires_grad for parameter in found.parameters())
    assert load_scorer(None, build_tokenizer(), "float32") is None


def test_what_is_no_reward_model_of_this_policy_is_refused(scorer: Path, start: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"with one label, but .* holds Qwen2ForCausalLM"):
        refuse_as_scorer(start, build_tokenizer())
    with pytest.raises(DataError, match=r"probe\.path must be a reward model's folder"):
        refuse_as_scorer(tmp_path / "nothing", build_tokenizer())
    other = build_tokenizer()
    other.add_tokens(["another"])
    with pytest.raises(DataError, match=r"must have the policy's tokenizer, but 1 of .* 'another' among them"):
        refuse_as_scorer(scorer, other)
    several = tiny_scorer(labels=2, vocab=len(build_tokenizer()))
    several.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"with one label, but .* with 2"):
        refuse_as_scorer(tmp_path, build_tokenizer())


@pytest.mark.parametrize("method", ["oar_s", "oar_s_advantage", "mig"])
def test_a_method_that_reads_the_right_answer_itself_is_refused(method: str) -> None:
    Method.built(config(f"method={method}"))
    with pytest.raises(ConfigError, match=f"probe must be one that reads the answer with {method}"):
        Method.built(config(f"method={method}", "probe=reference"))


def test_runs_of_before_keep_their_identity() -> None:
    assert {"path", "reference"}.isdisjoint(config().computed()["probe"])
    assert config("probe=reference").computed()["probe"]["reference"] == "solution"
    with_answer = config("probe=reference", "probe.reference=answer")
    assert len({config().identity(), config("probe=reference").identity(), with_answer.identity()}) == 3


@pytest.mark.parametrize("method", ["oar_p", "oar_gn"])
@pytest.mark.parametrize("probe", ["reward_model", "solution", "answer"])
def test_a_step_credits_completions_without_an_answer(probe: str, method: str, start: Path, scorer: Path) -> None:
    chosen = {"reward_model": ("probe=reward_model", f"probe.path={scorer}")}.get(
        probe, ("probe=reference", f"probe.reference={probe}")
    )
    learner = learner_of(config(f"method={method}", *chosen), start, ALONE)
    report = learner.training_step()
    batch, weights = report.graded.batch, report.credited.token_weights
    silent = ~batch.has_answer & (report.advantages != 0)
    assert silent.any()
    assert report.metrics["probe/fallback_share"] == 0
    assert (weights[silent] != 1).any(dim=1).all()
    sums = (weights * batch.reasoning_mask).sum(dim=1)
    torch.testing.assert_close(sums, batch.reasoning_mask.sum(dim=1).float())
    plain = learner_of(config(f"method={method}", "probe=as_mean"), start, ALONE).training_step()
    assert plain.metrics["probe/fallback_share"] == float((~batch.has_answer).float().mean())


def test_micro_batches_change_nothing(start: Path, scorer: Path) -> None:
    found = []
    for tokens in (100, 5000):
        cfg = config(
            "method=oar_p", "probe=reward_model", f"probe.path={scorer}", f"learner.micro_batch_tokens={tokens}"
        )
        found.append(learner_of(cfg, start, ALONE).training_step().credited.token_importance)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


def test_what_is_kept_of_a_step_gives_the_same_weights_again(start: Path, scorer: Path) -> None:
    cfg = config("method=oar_p", "probe=reward_model", f"probe.path={scorer}", "learner.lr=1e-12")
    learner = learner_of(cfg, start, ALONE)
    report = learner.training_step()
    samples = [Sample(**row) for row in sample_rows(learner.task, report, 24)]  # type: ignore[arg-type]
    assert any("####" not in sample.completion and sample.reasoning_tokens for sample in samples)
    logged, *_ = logged_signals(samples, cfg, notes := [])
    model, task = load_policy(start, "float32"), learner.task
    again, *_ = model_signals(
        model, task, samples, cfg, {"oar_p": cfg.method}, step=1, source="the same weights", notes=notes
    )
    assert not notes
    for row, sample in enumerate(samples):
        if sample.advantage:
            np.testing.assert_allclose(again.values[row], logged.values[row], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("lacks", ["solution", "answer"])
def test_a_problem_without_a_reference_is_refused_at_the_start(lacks: str, start: Path) -> None:
    learner = learner_of(config("method=oar_p", "probe=reference", f"probe.reference={lacks}"), start, ALONE)
    known = learner.source.problems(0, 0, 1)[0]
    assert learner.fits(known)
    bare = Problem(known.id, known.question, "####" if lacks == "answer" else known.answer, known.benchmark)
    with pytest.raises(DataError, match=f"probe=reference needs the {lacks} of every problem, but {known.id} of"):
        learner.fits(bare)


def test_the_scorer_is_loaded_where_the_probe_asks_for_it(start: Path, scorer: Path) -> None:
    assert Beside.loaded(config(), start, None).scorer is None
    assert Beside.loaded(config("probe=reward_model", f"probe.path={scorer}"), start, None).scorer is not None
