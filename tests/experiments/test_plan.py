"""`python -m experiments.plan`: what a person reads, what a program reads, and what is refused."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from transformers import Qwen2Config

from experiments import plan
from tests.programs import run as run_program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Exit code, output and errors of the program for these overrides, run in an empty folder where it leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    put = set()

    def started(*overrides):
        put.update(tmp_path.iterdir())
        code = 0
        with initialize_config_dir(str(ROOT / "conf"), version_base=None):
            try:
                plan.main(compose("plan", list(overrides)))
            except SystemExit as ended:
                code = ended.code
        said = capsys.readouterr()
        return code, said.out, said.err

    yield started
    assert set(tmp_path.iterdir()) == put


def test_profiles_are_planned_without_weights_data_or_network(run):
    for profile, parameters in (("paper", 7_615_616_512), ("single_gpu", 1_543_714_304), ("embedded", 472_960)):
        code, out, err = run(f"profile={profile}", "json=true")
        assert (code, err) == (0, "")
        (line,) = out.splitlines()
        found = json.loads(line)
        assert (found["profile"], found["parameters"]) == (profile, parameters)
        assert set(found["methods"]) == {"grpo", "oar_g", "oar_gn", "oar_p_routes", "oar_p_window", "oar_p"}
        assert found["methods"]["oar_p"]["step"] > found["methods"]["oar_g"]["step"] > found["methods"]["grpo"]["step"]
        assert found["assumptions"]["device"]


def test_the_hours_in_the_readme_are_the_planned_ones(run):
    page = (ROOT / "docs" / "GPU.md").read_text()
    shown = page.split("<!-- plan -->\n")[1].split("<!-- /plan -->")[0].strip().splitlines()
    for row in shown[2:]:
        profile, devices, *hours = (cell.strip(" `") for cell in row.strip("|").split("|"))
        _, out, _ = run(f"profile={profile}", "json=true")
        planned = json.loads(out)
        assert planned["assumptions"]["devices"] == int(devices)
        methods = ("grpo", "oar_g", "oar_p_routes", "oar_p")
        assert hours == [f"{planned['methods'][method]['device_hours']:.1f}" for method in methods]
    assert len(shown) == 4


def test_embedded_sizes_are_those_of_the_taught_model(run):
    """Of hidden size 64 instead of 128: the plan follows model.teach."""
    found = json.loads(run("model.teach.hidden_size=64", "json=true")[1])
    assert found["model"]["sizes_from"] == "model.teach"
    assert (found["model"]["hidden"], found["model"]["vocabulary"], found["model"]["context"]) == (64, 113, 1024)


def test_a_person_reads_tables(run):
    code, out, _ = run("profile=paper", "method=oar_p", "method.estimator.window=4", "assume.price_per_device_hour=3")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 130
    assert "7,615,616,512 parameters" in lines[0]
    assert "Worked out, not measured" in out
    (own,) = [line for line in lines if line.startswith("oar_p ")]
    assert own.split()[1] == "7,602"  # 692 reasoning tokens x (5 and a tail of 6), the last four 1 + 2 + 3 + 4 fewer
    assert any(line.startswith("generated_tokens_per_s") for line in lines)
    assert "price" in out


def test_sizes_come_from_the_folder_where_there_is_one(run, tmp_path):
    config = Qwen2Config(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    config.save_pretrained(tmp_path)
    code, out, _ = run("profile=single_gpu", f"model.path={tmp_path}", "json=true")
    assert code == 0
    model = json.loads(out)["model"]
    assert (model["hidden"], model["layers"]) == (64, 2)
    assert model["sizes_from"] == str(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (["model.path=nowhere"], None, "model.path must be a folder with a config.json, but is nowhere"),
        (["model.path=here"], "{", "must hold JSON, but does not"),
        (["model.path=here"], '{"model_type": "gpt2"}', "a model of type qwen2, but"),
        (["model.path=here"], '{"model_type": "qwen2", "hidden_size": 64}', "must give num_hidden_layers, "),
        (["model.name=mine"], None, "that conf/plan.yaml knows (qwen2_5_7b, qwen2_5_math_7b, qwen2_5_1_5b), not mine"),
        (["+assume.gpus=3"], None, "gpus"),
        (["learner.batch_size=100"], None, "multiple of learner.num_generations (8), but is 100"),
        (["assume.memory_gib=24"], None, "GiB, but has 24 (assume.memory_gib)"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, content, said, run, tmp_path):
    if content is not None:
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "config.json").write_text(content)
    code, out, err = run("profile=paper", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_the_command():
    code, output = run_program("plan", "profile=paper", "learner.micro_batch_tokens=257536")
    assert code == 2
    assert output.startswith("error: A device must hold")
    assert output.count("\n") == 1
