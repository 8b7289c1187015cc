"""`python -m experiments.plan`: what a person reads, what a program reads, and what is refused."""

import json

import pytest
from transformers import Qwen2Config

from tests.programs import ROOT
from tests.programs import run as run_program


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Exit code and output of the program for these overrides, run in an empty folder where it leaves nothing behind."""
    monkeypatch.chdir(tmp_path)

    def started(*overrides):
        before = set(tmp_path.iterdir())
        found = run_program("plan", *overrides)
        assert set(tmp_path.iterdir()) == before
        return found

    return started


@pytest.fixture
def planned(run):
    """The JSON object of a plan."""

    def of(*overrides):
        code, out = run(*overrides, "json=true")
        assert (code, out.count("\n")) == (0, 1), out
        return json.loads(out)

    return of


@pytest.mark.parametrize(
    ("profile", "parameters"),
    [
        ("paper", 7_615_616_512),
        ("single_gpu", 1_543_714_304),
        ("embedded", 472_960),
        ("laptop", 162_826_560),
        ("laptop_gsm8k", 162_826_560),
        ("sheets", 477_312),
    ],
)
def test_profiles_are_planned_without_weights_data_or_network(profile, parameters, planned):
    """And docs/GPU.md has the hours that are planned."""
    found = planned(f"profile={profile}")
    assert (found["profile"], found["parameters"]) == (profile, parameters)
    methods = found["methods"]
    assert set(methods) == {"grpo", "oar_g", "oar_gn", "oar_p_routes", "oar_p_window", "oar_p"}
    assert methods["oar_p"]["step"] > methods["oar_g"]["step"] > methods["grpo"]["step"]
    shown = [line for line in (ROOT / "docs" / "GPU.md").read_text().splitlines() if line.startswith(f"| `{profile}`")]
    hours = [f"{methods[method]['device_hours']:.1f}" for method in ("grpo", "oar_g", "oar_p_routes", "oar_p")]
    row = [f"`{profile}`", str(found["assumptions"]["devices"]), *hours]
    assert shown == ([] if profile.startswith(("embedded", "laptop", "sheets")) else [f"| {' | '.join(row)} |"])


def test_embedded_sizes_are_those_of_the_taught_model(planned):
    """Of hidden size 64 instead of 128: the plan follows model.teach."""
    found = planned("model.teach.hidden_size=64")["model"]
    assert found["sizes_from"] == "model.teach"
    assert (found["hidden"], found["vocabulary"], found["context"]) == (64, 113, 1024)


def test_sizes_come_from_the_folder_where_there_is_one(planned, tmp_path):
    config = Qwen2Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    config.save_pretrained(tmp_path)
    found = planned("profile=single_gpu", f"model.path={tmp_path}")["model"]
    assert (found["hidden"], found["layers"]) == (64, 2)
    assert found["sizes_from"] == str(tmp_path / "config.json")


def test_a_person_reads_tables(run):
    code, out = run("profile=paper", "method=oar_p", "method.estimator.window=4", "assume.price_per_device_hour=3")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 130
    assert "7,615,616,512 parameters" in lines[0]
    assert "Worked out, not measured" in out
    (own,) = [line for line in lines if line.startswith("oar_p ")]
    assert own.split()[1] == "7,602"  # 692 reasoning tokens x (5 and a tail of 6), the last four 1 + 2 + 3 + 4 fewer
    assert any(line.startswith("generated_tokens_per_s") for line in lines)
    assert "price" in out


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (
            ["model.path=nowhere"],
            None,
            "model.path must be a folder with a config.json, but nowhere is not: conf/model/",
        ),
        (["model.path=here"], "{", "must hold JSON, but does not"),
        (["model.path=here"], '{"model_type": "gpt2"}', "models of type qwen2 or llama, but"),
        (["model.path=here"], '{"model_type": "qwen2", "hidden_size": 64}', "must give num_hidden_layers, "),
        (
            ["model.name=mine"],
            None,
            "that conf/plan.yaml knows (qwen2_5_7b, qwen2_5_math_7b, qwen2_5_1_5b, smollm2), not mine",
        ),
        (["+assume.gpus=3"], None, "gpus"),
        (["learner.micro_batch_tokens=257536"], None, "A device must hold"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, content, said, run, tmp_path):
    if content is not None:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "config.json").write_text(content)
    code, out = run("profile=paper", *arguments)
    assert code == 2
    assert said in out
    assert out.startswith("error: ")
    assert out.count("\n") == 1
