"""The base model: the same config gives the same weights, and a folder appears complete or not at all."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from oar.common import files
from oar.common.errors import ConfigError, DataError, OarError
from oar.tasks.embedded import base_model
from oar.tasks.embedded.base_model import RECORD, ensure_base_model, model_key
from oar.tasks.embedded.teaching import Taught, Teaching, backward, build_model, examples, teach
from oar.tasks.sheets import Sheet
from oar.tasks.sheets.teaching import SheetTeaching
from oar.tasks.words import build_tokenizer, make_tiers
from oar.tasks.words.teaching import TeachConfig
from tests.programs import run

REPOSITORY = Path(__file__).parents[2]

# Small and ignorant: any accuracy will do.
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_layers": 1,
    "batch_size": 8,
    "max_steps": 6,
    "target_accuracy": 0.0,
    "first_check_step": 6,
    "check_problems": 2,
    "max_new_tokens": 8,
}
CONFIG = TeachConfig(**SMALL)
SHEETS = SheetTeaching(**SMALL, sheet=Sheet(entries=4))


def silent(_: str) -> None:
    """No progress wanted."""


@pytest.fixture(scope="module")
def taught() -> Taught:
    return teach(CONFIG, silent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_base_model(CONFIG, tmp_path_factory.mktemp("root"), silent)


@pytest.mark.parametrize("config", [CONFIG, SHEETS], ids=["words", "sheets"])
def test_the_same_config_gives_bit_equal_weights_whatever_came_before(config: Teaching) -> None:
    taught = teach(config, silent)
    torch.manual_seed(torch.initial_seed() + 1)
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    again = teach(config, silent)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(torch.get_rng_state(), before)
    for name, weight in again.model.state_dict().items():
        assert torch.equal(weight, taught.model.state_dict()[name]), name
    assert again.accuracy == taught.accuracy


def test_another_seed_gives_other_weights(taught: Taught) -> None:
    other = teach(replace(CONFIG, seed=1), silent)
    assert not torch.equal(other.model.lm_head.weight, taught.model.lm_head.weight)


def test_every_parameter_learns_but_the_pad_embedding_stays_zero(taught: Taught) -> None:
    fresh = build_model(CONFIG, build_tokenizer()).state_dict()
    for name, weight in taught.model.state_dict().items():
        assert not torch.equal(weight, fresh[name]), name
    embeddings = taught.model.model.embed_tokens.weight
    assert torch.count_nonzero(embeddings[taught.tokenizer.pad_token_id]) == 0
    assert torch.count_nonzero(embeddings[1:]) == embeddings[1:].numel()


def test_micro_batches_change_the_gradient_by_rounding_only() -> None:
    tokenizer = build_tokenizer()
    pairs = examples(CONFIG.lesson(), tokenizer, CONFIG.batch_size, 0)
    gradients = []
    for micro_batch_size in (8, 4, 1):
        model = build_model(CONFIG, tokenizer)
        backward(model, pairs, tokenizer.pad_token_id, micro_batch_size)
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-6)


def test_only_the_completion_is_taught() -> None:
    """The loss is that of the completion tokens, each predicted from all before it, computed here one row at a time."""
    tokenizer = build_tokenizer()
    model = build_model(CONFIG, tokenizer)
    pairs = examples(CONFIG.lesson(), tokenizer, CONFIG.batch_size, 0)
    nats, tokens = 0.0, 0
    for prompt, completion in pairs:
        logprobs = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for position, token in enumerate(completion, start=len(prompt)):
            nats -= logprobs[position - 1, token].item()
            tokens += 1
        assert prompt[0] == tokenizer.bos_token_id
        assert completion[-1] == tokenizer.eos_token_id
    assert backward(model, pairs, tokenizer.pad_token_id, 4) == pytest.approx(nats / tokens, rel=1e-5)


def test_a_target_out_of_reach_is_an_error_that_says_what_to_change() -> None:
    with pytest.raises(ConfigError, match="max_steps"):
        teach(replace(CONFIG, target_accuracy=0.9, max_steps=2), silent)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"target_accuracy": 1.5}, {"num_heads": 3}])
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(CONFIG, **wrong)


def test_the_folder_loads_like_any_other(folder: Path, taught: Taught) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, taught.model.state_dict()[name]), name
    assert not model.config.tie_word_embeddings
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0)
    question = "Tom has 12 apples ."
    assert tokenizer(question).input_ids == taught.tokenizer(question).input_ids
    record = json.loads((folder / RECORD).read_text())
    assert record["config"] == asdict(CONFIG)
    assert record["accuracy"].keys() == {tier.name for tier in make_tiers()}


def test_a_finished_folder_is_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "teach", None)  # would fail if called
    assert ensure_base_model(CONFIG, folder.parent, silent) == folder


def test_every_number_and_the_source_version_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {name: type(value)(value + 2) for name, value in asdict(CONFIG).items()}
    changes |= {"hidden_size": 64, "num_heads": 8, "num_key_value_heads": 4, "target_accuracy": 0.2}
    keys = [model_key(CONFIG), *(model_key(replace(CONFIG, **{name: value})) for name, value in changes.items())]
    monkeypatch.setattr(base_model, "SOURCE_VERSION", -1)
    keys.append(model_key(CONFIG))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_build_leaves_nothing(
    failure: BaseException, tmp_path: Path, taught: Taught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(base_model, "teach", lambda *_: taught)
    monkeypatch.setattr(taught.tokenizer, "save_pretrained", fail)  # the weights are written by then
    expected = OarError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        ensure_base_model(CONFIG, tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_nothing_stands_under_the_final_name_before_the_whole_folder_does(
    tmp_path: Path, taught: Taught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, destination: Path) -> None:
        AutoModelForCausalLM.from_pretrained(source)
        assert (source / RECORD).is_file()
        assert not destination.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(base_model, "teach", lambda *_: taught)
    monkeypatch.setattr(files.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ensure_base_model(CONFIG, tmp_path, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_someone_else_is_neither_used_nor_overwritten(tmp_path: Path) -> None:
    theirs = tmp_path / model_key(CONFIG)
    theirs.mkdir()
    (theirs / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=RECORD):
        ensure_base_model(CONFIG, tmp_path, silent)
    assert (theirs / "notes.txt").read_text() == "mine"


def test_two_builders_at_once_publish_one_whole_folder(
    tmp_path: Path, taught: Taught, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(*_: object) -> Taught:
        """While this one teaches, another one publishes."""
        monkeypatch.setattr(base_model, "teach", lambda *_: taught)
        ensure_base_model(CONFIG, tmp_path, silent)
        return taught

    monkeypatch.setattr(base_model, "teach", slower)
    folder = ensure_base_model(CONFIG, tmp_path, silent)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    AutoModelForCausalLM.from_pretrained(folder)


def test_the_configuration_names_every_number_and_none_differs() -> None:
    teach = OmegaConf.to_container(OmegaConf.load(REPOSITORY / "conf/model/embedded.yaml").teach)
    assert teach == {"_target_": "oar.tasks.words.teaching.TeachConfig", **asdict(TeachConfig())}


def test_sheets_are_models_of_their_own() -> None:
    kinds = [replace(SHEETS, known=0.5), replace(SHEETS, sheet=Sheet(entries=5)), SHEETS, CONFIG]
    assert len({model_key(config) for config in kinds}) == len(kinds)


def test_the_entry_point_teaches_prints_and_leaves_nothing_else(tmp_path: Path) -> None:
    overrides = [f"++model.teach.{name}={value}" for name, value in asdict(CONFIG).items()]
    code, output = run("base_model", f"model.teach_dir={tmp_path}", *overrides)
    assert code == 0, output
    assert str(tmp_path / model_key(CONFIG)) in output
    assert "words5" in output
    assert [path.name for path in tmp_path.iterdir()] == [model_key(CONFIG)]
