"""`python -m experiments.fit`: what it says fits is what a plan of it says."""

import json
from pathlib import Path

import pytest

from tests.programs import run

ONE = ("profiles=[single_gpu]", "methods=[oar_g]")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def found(*overrides: str) -> list[dict[str, object]]:
    code, out = run("fit", *overrides, "json=true")
    assert (code, out.count("\n")) == (0, 1), out
    rows: list[dict[str, object]] = json.loads(out)["fits"]
    return rows


@pytest.mark.parametrize("lora", ["none", "r64"])
def test_the_largest_that_fits_is_planned_and_the_next_is_refused(lora: str) -> None:
    (fit,) = found("gpu=H100", *ONE, f"loras=[{lora}]")
    plan = ("profile=single_gpu", "method=oar_g", f"lora={lora}")
    largest = fit["micro_batch_tokens"]
    assert isinstance(largest, int)
    code, out = run("plan", *plan, f"learner.micro_batch_tokens={largest}")
    assert code == 0, out
    code, out = run("plan", *plan, f"learner.micro_batch_tokens={largest + 1024}")
    assert code == 2
    assert out.startswith("error: A device must hold 7")


def test_what_does_not_fit_says_what_it_needs() -> None:
    (fit,) = found("gpu=4090", *ONE, "loras=[none]")
    assert fit["micro_batch_tokens"] is None
    assert fit["rollout.kv_cache_gib"] == 4.8  # 16 GiB of the profile's 79.6, on 24
    plan = ("profile=single_gpu", "method=oar_g", "assume.memory_gib=24", "rollout.kv_cache_gib=4.8")
    code, out = run("plan", *plan, "learner.micro_batch_tokens=2048")
    assert code == 2
    assert f"must hold {fit['least_gib']:.1f} GiB" in out


def test_keys_of_a_run_are_those_of_every_plan() -> None:
    (plain,) = found("+gpus.MINE=60", "gpu=MINE", *ONE, "loras=[none]")
    (less,) = found("+gpus.MINE=60", "gpu=MINE", *ONE, "loras=[none]", "rollout.kv_cache_gib=2")
    assert (plain["rollout.kv_cache_gib"], less["rollout.kv_cache_gib"]) == (12.1, 2)
    assert less["micro_batch_tokens"] > plain["micro_batch_tokens"]  # type: ignore[operator]


def test_a_method_has_what_it_holds_besides_and_what_a_run_refuses_has_no_size() -> None:
    """`sdpg` scores under a teacher's context; `prime` trains a reward model, in float32 alone."""
    alone, with_teacher, refused = found(
        "gpu=H100", "profiles=[single_gpu]", "methods=[grpo,sdpg,prime]", "loras=[none]"
    )
    code, out = run(
        "plan", "profile=single_gpu", "method=sdpg", f"learner.micro_batch_tokens={alone['micro_batch_tokens']}"
    )
    assert (code, out.startswith("error: A device must hold")) == (2, True), out
    code, out = run(
        "plan", "profile=single_gpu", "method=sdpg", f"learner.micro_batch_tokens={with_teacher['micro_batch_tokens']}"
    )
    assert code == 0, out
    assert (refused["micro_batch_tokens"], refused["least_gib"]) == (None, None)
    assert "learner.compute_dtype float32" in str(refused["refused"])


def test_a_person_reads_a_table() -> None:
    code, out = run("fit", "gpu=A6000", "methods=[grpo,oar_p]")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["single_gpu"], ["paper"])]
    assert [row[:3] for row in rows] == [
        [profile, model, lora]
        for profile, model in (("single_gpu", "qwen2_5_1_5b"), ("paper", "qwen2_5_7b"))
        for lora in ("none", "r64")
    ]
    assert "not measured" in out
    assert any("GiB" in row for row in rows)
    assert max(map(len, out.splitlines())) <= 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu=5090"], "gpu must be one of 4090, A6000, A100-40, A100-80, H100, H200, but is '5090'"),
        (["lora=r8"], "type loras=[r64]"),
        (["profile=paper"], "type profiles=[paper]"),
        (["learner.micro_batch_tokens=8"], "it is what is looked for"),
        (["loras=[r7]"], "lora must be one of none, r64, r8, but is 'r7'"),
        (["methods=[]"], "methods must be a list of one or more"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], said: str) -> None:
    code, out = run("fit", *arguments)
    assert code == 2
    assert out.startswith("error: ")
    assert out.count("\n") == 1
    assert said in out


def test_a_method_that_no_run_may_have_is_refused_beside_the_others() -> None:
    """`sdpo` by its settings, `prime` when it is built; a table of refused methods alone has no sizes."""
    fits, refused = found("profiles=[single_gpu]", "methods=[grpo,sdpo]", "loras=[none]")
    assert (fits["refused"], refused["micro_batch_tokens"]) == (None, None)
    assert "method.teacher.kind must be" in str(refused["refused"])
    code, out = run("fit", "profiles=[single_gpu]", "methods=[prime]", "loras=[none]")
    assert code == 0, out
    assert "refused, prime: " in out
