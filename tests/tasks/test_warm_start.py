"""A warm start on a tiny model: it learns, is kept by what made it, and is an ordinary folder."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from oar.common.errors import ConfigError, DataError
from oar.common.provenance import ROOT
from oar.config import ModelConfig, build
from oar.launch.start_model import model_folder
from oar.model.load import load_policy, load_tokenizer
from oar.tasks.data.demonstrations import SolutionDemonstrations, WordDemonstrations
from oar.tasks.data.sources import DatasetSource
from oar.tasks.template import load_template
from oar.tasks.warm_start import WarmStart, ensure_warm_start, examples
from tests.byte_level import byte_level_tokenizer
from tests.config.test_config import composed
from tests.pretended_gpu import pretended_gpu


def silent(_: str) -> None: ...


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("start"), byte_level_tokenizer()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def config(start: Path) -> WarmStart:
    demonstrations = WordDemonstrations(["english1"])
    return WarmStart(str(start), "question_answer", demonstrations, steps=6, batch_size=4, lr=1e-2)


def test_it_learns_and_is_kept(config: WarmStart, start: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = ensure_warm_start(config, tmp_path, lines.append)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 1
    record = json.loads((folder / "teaching.json").read_text())
    assert (record["taught_steps"], record["loss"]) == (6, pytest.approx(losses[-1], abs=1e-3))
    AutoModelForCausalLM.from_pretrained(folder)
    assert load_tokenizer(folder).get_vocab() == load_tokenizer(start).get_vocab()
    assert ensure_warm_start(config, tmp_path, pytest.fail) == folder  # type: ignore[arg-type]
    again = ensure_warm_start(replace(config, seed=1), tmp_path, silent)
    assert again != folder


def test_the_same_settings_give_the_same_weights_and_time_ends_it(config: WarmStart, tmp_path: Path) -> None:
    folders = [ensure_warm_start(config, tmp_path / name, silent) for name in "ab"]
    one, other = (load_policy(folder, "float32").state_dict() for folder in folders)
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    cut = ensure_warm_start(replace(config, max_minutes=1e-9), tmp_path, silent)
    assert json.loads((cut / "teaching.json").read_text())["taught_steps"] == 1


def test_it_is_taught_on_the_gpu_where_there_is_one(config: WarmStart, tmp_path: Path) -> None:
    here = ensure_warm_start(config, tmp_path / "here", silent)
    with pretended_gpu() as gpu:
        there = ensure_warm_start(config, tmp_path / "there", silent)
    assert gpu.uploads
    one, other = (load_policy(folder, "float32").state_dict() for folder in (here, there))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_an_adapter_is_merged(config: WarmStart, start: Path, tmp_path: Path) -> None:
    adapted = replace(config, lora={"r": 2, "alpha": 4, "targets": ["q_proj"]}, steps=2)
    before, after = (
        load_policy(one, "float32").state_dict() for one in (start, ensure_warm_start(adapted, tmp_path, silent))
    )
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert changed == {"model.layers.0.self_attn.q_proj.weight"}
    assert before.keys() == after.keys()


def test_what_is_taught(config: WarmStart, start: Path) -> None:
    tokenizer = load_tokenizer(start)
    (prompt, completion), *_ = examples(config, load_template("question_answer"), tokenizer, 0)
    question, text = next(
        pair
        for pair in (config.demonstrations.pair(0, index) for index in range(4))
        if pair[0] in tokenizer.decode(prompt)
    )
    assert tokenizer.decode(prompt) == f"Question: {question}\nAnswer:"
    assert tokenizer.decode(completion[:-1]) == f" {text}"
    assert completion[-1] == tokenizer.eos_token_id


def test_solutions_of_a_data_set(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "How many?", "answer": "4", "solution": "2 + 2 = 4."}\n')
    columns = {name: [name] for name in ("question", "answer", "solution")}
    dataset = {"dataset": None, "columns": columns, "answer_form": "integer"}
    source = DatasetSource("own", str(file), None, dataset)
    assert SolutionDemonstrations(source).pair(0, 5) == ("How many?", "2 + 2 = 4.\n#### 4")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"question": "How many?", "answer": "4"}\n')
    with pytest.raises(DataError, match="need solutions"):
        SolutionDemonstrations(DatasetSource("own", str(bare), None, dataset)).pair(0, 0)
    with pytest.raises(ConfigError, match="choose data=gsm8k"):
        build("model.teach", OmegaConf.to_container(composed("model=smollm2_gsm8k", "data.source=null").model.teach))


def test_what_cannot_work_is_refused(config: WarmStart, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.teach\.start must be a folder .*make smollm2"):
        ensure_warm_start(replace(config, start=str(tmp_path)), tmp_path, silent)
    with pytest.raises(ConfigError, match=r"model\.teach\.steps must be 1 or more"):
        replace(config, steps=0)


def test_the_configuration_names_every_number_and_a_run_starts_from_it(config: WarmStart, tmp_path: Path) -> None:
    said = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/model/smollm2_english.yaml").teach)
    own = {key: value for key, value in said.items() if key not in ("_target_", "start", "template", "demonstrations")}
    defaults = asdict(WarmStart(config.start, config.template, config.demonstrations))
    assert own == {key: defaults[key] for key in defaults if key not in ("start", "template", "demonstrations")}
    teach = {**said, "start": config.start, "template": config.template, "steps": 1, "batch_size": 1}
    model = ModelConfig("mine", None, teach, str(tmp_path), "float32", "####")
    assert (model_folder(model, silent) / "config.json").is_file()
