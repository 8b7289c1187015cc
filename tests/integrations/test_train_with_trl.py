"""The example: the embedded task with TRL's trainer, from a folder of random weights."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("trl")

from trl import GRPOConfig

from experiments.train_with_trl import TrainWithTrlConfig, make_trainer, summary
from oar.common.errors import ConfigError
from oar.config import TrainConfig, validated
from oar.integrations.trl import OARGRPOConfig
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.models import tiny_model

SMALL = (
    "trl.max_steps=2",
    "trl.per_device_train_batch_size=4",
    "trl.gradient_accumulation_steps=2",
    "trl.num_generations=4",
)


def config(folder: Path, *overrides: str) -> TrainWithTrlConfig:
    words = build_tokenizer()
    tiny_model(vocab=len(words)).save_pretrained(folder)
    words.save_pretrained(folder)
    given = (f"model.path={folder}", "trl.max_completion_length=12", *SMALL, *overrides)
    return validated(composed(*given, name="train_with_trl"), TrainWithTrlConfig)


def test_a_line_a_step_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(config(tmp_path / "model", "trl.method=oar_gn"), tmp_path / "out")
    assert len(trainer.train_dataset) == 2 * 2  # steps x prompts of a step
    trainer.train()
    trainer.save_state()
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert first.startswith("step    1/2  reward 0.")
    assert second.startswith("step    2/2  reward ")
    log = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert summary(trainer.args, log).startswith("oar_gn: 2 steps of 2 problems x 4 completions in ")


def test_defaults_are_those_of_the_embedded_run(tmp_path: Path) -> None:
    cfg = validated(composed(f"model.path={tmp_path}", name="train_with_trl"), TrainWithTrlConfig)
    args, run = cfg.arguments(tmp_path), validated(composed("method=oar_g"), TrainConfig)
    learner = run.learner
    assert args.gating_settings() == run.gating
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == learner.batch_size
    assert (args.num_generations, args.learning_rate, args.adam_beta2, args.warmup_steps, args.max_grad_norm) == (
        *(learner.num_generations, learner.lr, learner.adam_beta2, learner.warmup_steps, learner.max_grad_norm),
    )
    assert (args.max_completion_length, args.temperature) == (run.rollout.max_new_tokens, run.rollout.temperature)
    assert (args.epsilon, args.beta, args.weight_decay) == (learner.clip_eps_low, learner.kl_coef, learner.weight_decay)
    assert (args.probe, args.probe_warmup_steps, args.probe_conclude) == (
        *(run.probe.name, run.probe.warmup_steps, run.probe.conclude),
    )
    plain = OARGRPOConfig("", bf16=False, use_cpu=True)  # what a script gets that chooses nothing
    own = {field.name for field in fields(OARGRPOConfig)} - {field.name for field in fields(GRPOConfig)} - {"marker"}
    assert {name: getattr(plain, name) for name in own} == {name: getattr(args, name) for name in own}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("+trl.tau=0.5", "trl must hold arguments of OARGRPOConfig, but: .*'tau'"),
        ("trl.num_generations=3", "trl must hold arguments of OARGRPOConfig, but: .*divisible"),
        ("trl.max_steps=0", r"trl\.max_steps must be 1 or more, but is 0"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(tmp_path: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_trainer(config(tmp_path, override), tmp_path)
