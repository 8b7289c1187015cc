"""`experiments.evaluate` against a server that knows texts alone, and `experiments.compare` on what it wrote."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from transformers import Qwen2Config

from experiments import compare, evaluate
from oar.common.seeding import derive_seed
from oar.config import EvaluateConfig, validated
from oar.config.evaluation import Sampling
from oar.tasks.data.sources import load_benchmark
from oar.tasks.words import build_tokenizer
from tests.config.test_config import CONF, composed
from tests.conftest import start_fake_engine
from tests.rollout.fake_openai import said

PROBLEMS, K = 6, 4
DRAWN = 2 * PROBLEMS * 2  # requests: two sets, sampled and greedy
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that names a tokenizer and holds no weights: those are the server's."""
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer().save_pretrained(folder)
    Qwen2Config().save_pretrained(folder)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """An entry point with its arguments: exit code and output."""

    def call(module: object, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["prog", f"--config-path={CONF}", *arguments])
        code = 0
        try:
            module.main()  # type: ignore[attr-defined]
        except SystemExit as left:
            code = int(left.code or 0)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


@pytest.fixture
def evaluated(run: Run, tokenizer: Path, tmp_path: Path) -> Run:
    """Evaluate `name` with a fake server that is given `faults`, on a port of one's choice."""

    def call(name: str, *overrides: str, faults: tuple[str, ...] = (), port: str = "0") -> tuple[int, str]:
        process, url = start_fake_engine(tmp_path / "server.log", "--port", port, *faults, server="fake_openai")
        with process:
            return run(
                evaluate,
                f"model.path={tokenizer}",
                "model.teach=null",
                "benchmark.sets=[words1,words2]",
                f"evaluation.final_problems={PROBLEMS}",
                f"evaluation.k={K}",
                f"rollout.url={url}",
                f"output_dir={tmp_path / name}",
                *overrides,
            )

    return call


def error_line(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    return line


def kept_lines(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in (folder / "completions").iterdir())


def test_texts_are_drawn_and_graded(evaluated: Run, tmp_path: Path) -> None:
    code, output = evaluated("a")
    assert code == 0, output
    assert "serves mine: texts are drawn" in output
    assert "words1, 4 samples: " in output
    assert " a second" in output
    samples = pd.read_parquet(tmp_path / "a" / "samples.parquet")
    assert len(samples) == 2 * PROBLEMS * (K + 1)
    problem = load_benchmark("words2", "final", PROBLEMS)[3]
    seed = derive_seed(derive_seed(derive_seed(1, "evaluation"), "evaluation", "words2"), 3) % 2**31
    request = {"prompt": problem.question, "seed": seed, "temperature": 1.0}
    mine = samples.query("benchmark == 'words2' and metric == 'avg@k' and problem_id == @problem.id").sort_values(
        "sample"
    )
    assert mine["prompt"].unique().tolist() == [problem.question]
    assert mine["completion"].tolist() == [said(request, index) for index in range(K)]
    assert mine["answer"].tolist() == [text[-1] for text in mine["completion"]]
    assert (mine["correct"] == (mine["answer"] == problem.answer)).all()
    assert set(samples["finish_reason"]) == {"stop"}
    table = pd.read_csv(tmp_path / "a" / "evaluation.csv")
    by_metric = list(zip(table["metric"], table["k"], table["benchmark"], strict=True))[2::3]
    assert by_metric == [
        (name, k, "mean") for name, k in [("avg@k", 4), ("pass@k", 2), ("pass@k", 4), ("maj@k", 4), ("pass@1", 1)]
    ]
    provenance = json.loads((tmp_path / "a" / "evaluation.json").read_text())["provenance"]
    assert provenance["served"]["model"] == "mine"
    assert provenance["drawn"]["tokens"] > 0
    code, output = evaluated("a")
    assert code == 2
    assert "already holds an evaluation" in error_line(output)


def test_a_template_reaches_prompt_verdict_and_record(evaluated: Run, tmp_path: Path) -> None:
    code, output = evaluated("a", "template=gsm8k_hash", "evaluation.k=2")
    assert code == 0, output
    samples = pd.read_parquet(tmp_path / "a" / "samples.parquet")
    question = load_benchmark("words1", "final", 1)[0].question
    asked = f'{question} Let\'s think step by step and output the final answer after "####".\n'
    assert asked in set(samples["prompt"])
    assert set(samples["outcome"]) == {"plain"}
    assert (samples["parsed_answer"] == samples["answer"]).all()
    assert (samples["parsed_gold"] == samples["gold"]).all()
    provenance = json.loads((tmp_path / "a" / "evaluation.json").read_text())["provenance"]
    assert provenance["template"]["name"] == "gsm8k_hash"
    assert f"gsm8k_hash ({provenance['template']['digest']})" in output
    code, output = evaluated("b", "template=qwen_math", "evaluation.k=2")  # the server answers in the other form
    assert code == 0, output
    boxed = pd.read_parquet(tmp_path / "b" / "samples.parquet")
    assert set(boxed["outcome"]) == {"no_answer"}
    assert not boxed["correct"].any()
    code, output = evaluated("c", "template=mine")
    assert code == 2
    assert "template must be one of gsm8k_hash, plain" in error_line(output)


@pytest.mark.parametrize(("fault", "sentence"), [("http_500", "HTTP 500"), ("cut", "cut off its answer")])
def test_a_server_that_fails_on_the_way_loses_nothing(
    fault: str, sentence: str, evaluated: Run, tmp_path: Path
) -> None:
    code, output = evaluated("whole")
    assert code == 0, output
    code, output = evaluated("broken", faults=("--fault", fault, "--after", "8"))
    assert code == 2
    assert sentence in error_line(output)
    assert "Traceback" not in output
    port = error_line(output).partition("127.0.0.1:")[2].split(" ")[0].rstrip(":/")
    before = kept_lines(tmp_path / "broken")
    assert 6 <= before <= 8
    assert not (tmp_path / "broken" / "evaluation.json").exists()
    code, output = evaluated("broken", port=port)
    assert code == 0, output
    assert kept_lines(tmp_path / "broken") == DRAWN  # and not one twice, which would be refused
    for name in ("samples.parquet", "evaluation.csv"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_two_evaluations_compared(evaluated: Run, run: Run, tmp_path: Path) -> None:
    assert evaluated("a")[0] == 0
    assert evaluated("b", "seed=2")[0] == 0
    folders = (f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}")
    code, output = run(compare, *folders)
    assert code == 0, output
    assert "difference: a - b in percentage points" in output
    code, output = run(compare, *folders, "json=true")
    assert code == 0
    found = json.loads(output)
    rows = {(row["benchmark"], row["metric"]): row for row in found["results"]}
    assert set(rows) == {(name, metric) for name in ("words1", "words2", "mean") for metric in ("avg@k", "pass@1")}
    values = [
        pd.read_csv(tmp_path / name / "evaluation.csv").set_index(["benchmark", "metric", "k"])["value"]
        for name in "ab"
    ]
    for (name, metric), row in rows.items():
        assert row["a"] == pytest.approx(values[0][name, metric, row["k"]])
        assert row["difference"] == pytest.approx(row["a"] - values[1][name, metric, row["k"]])
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
    code, output = run(compare, *folders[:1])
    assert code == 2
    assert "b must be the folder of an evaluation, but is empty" in error_line(output)
    assert evaluated("c", "evaluation.k=2")[0] == 0
    code, output = run(compare, folders[0], f"b={tmp_path / 'c'}")
    assert code == 2
    assert "cannot be compared" in error_line(output)


def test_sampling_by_benchmark(evaluated: Run, tmp_path: Path) -> None:
    code, output = evaluated("a", "+evaluation.sets.words2.k=2", "+evaluation.sets.words2.temperature=0.6")
    assert code == 0, output
    samples = pd.read_parquet(tmp_path / "a" / "samples.parquet").query("metric == 'avg@k'")
    assert samples.groupby("benchmark")["temperature"].unique().map(list).to_dict() == {
        "words1": [1.0],
        "words2": [0.6],
    }
    assert samples.groupby("benchmark").size().to_dict() == {"words1": PROBLEMS * K, "words2": PROBLEMS * 2}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["evaluation.k=0"], "evaluation.k must be 1 or more, but is 0"),
        (["+evaluation.sets.words1.k=0"], "evaluation.sets.words1.k must be 1 or more, but is 0"),
        (["evaluation.temperature=0"], "evaluation.temperature must be above 0"),
        (["evaluation.top_p=0"], "evaluation.top_p must be above 0 and at most 1"),
        (["evaluation.final_problems=0"], "evaluation.final_problems must be null or 1 or more"),
        (["evaluation.final_problems=null"], "words1 is generated and has no end"),
        (["api=grpc"], "api must be one of auto, vllm, openai"),
        (["rollout.url=null", "api=openai"], "rollout.url must be the address of a server where api=openai"),
        (
            ["rollout.url=null", "evaluation.max_new_tokens=256"],
            "evaluation.max_new_tokens must be below rollout.max_model_len",
        ),
        (["rollout.url=http://127.0.0.1:9"], "the engine at http://127.0.0.1:9 is gone"),
        (["api=vllm"], "must name a model with its max_model_len"),
    ],
)
def test_what_cannot_be_evaluated(overrides: list[str], sentence: str, evaluated: Run, tmp_path: Path) -> None:
    code, output = evaluated("a", *overrides)
    assert code == 2
    assert sentence in error_line(output)
    assert not (tmp_path / "a" / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("device=gpu", "device=gpu needs GPUs (rollout.servers=1 of 1 each), but torch finds none here"),
        ("rollout.tensor_parallel=2", "need 2 GPUs, but 0 are there"),
    ],
)
def test_gpus_that_are_not_there_are_missed_before_anything_starts(
    override: str, sentence: str, evaluated: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    code, output = evaluated("a", "rollout.url=null", override)
    assert code == 2
    assert sentence in error_line(output)
    assert not list(tmp_path.rglob("engine*.log"))


def test_the_published_choice_samples_as_its_comments_say() -> None:
    overrides = ("evaluation=published", "benchmark=paper_suite", "rollout.max_model_len=4096")
    cfg = validated(composed(*overrides, name="evaluate"), EvaluateConfig)
    assert cfg.evaluation.final_problems is None
    sampled = {name: cfg.evaluation.sampled(name) for name in cfg.benchmark.sets}
    assert {name: one.n for name, one in sampled.items()} == {
        "gsm8k": 4,
        "math500": 4,
        "aime24": 32,
        "aime25": 32,
        "amc23": 32,
    }
    assert {(one.temperature, one.top_p, one.max_new_tokens) for one in sampled.values()} == {(0.6, 0.95, 3000)}
    assert cfg.evaluation.greedy("aime24") == Sampling(1, 0.0, 3000)
