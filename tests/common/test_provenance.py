import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import torch

from oar.common.errors import ConfigError
from oar.common.provenance import collect_provenance, config_hash, cpu_model, git_state, machines


def test_the_hash_knows_values_and_not_their_order() -> None:
    assert config_hash({"a": 1, "b": {"c": [1, 2], "d": None}}) == config_hash({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    with pytest.raises(ConfigError, match="plain JSON"):
        config_hash({"a": Path("x")})
    with pytest.raises(ConfigError, match="plain JSON"):
        config_hash({"a": float("nan")})


def test_git_state_of_a_checkout_and_outside_of_one(tmp_path: Path) -> None:
    unknown = {"git_commit": None, "git_dirty": None}
    assert git_state(tmp_path) == unknown

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    assert git_state(tmp_path) == unknown  # no commit yet
    (tmp_path / "oar").mkdir()
    (tmp_path / "oar/code.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": False}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table1.csv").write_text("")  # results change while a run writes them
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": False}
    (tmp_path / "oar/new.py").write_text("")
    assert git_state(tmp_path) == {"git_commit": commit, "git_dirty": True}
    assert git_state(tmp_path / "oar") == unknown, "a package inside another project's checkout is not that project"


def test_provenance_is_json_and_names_no_path_of_this_checkout() -> None:
    record = collect_provenance(
        {"seed": 0}, started=datetime.now(UTC) - timedelta(seconds=5), git={"git_commit": "abc"}
    )
    assert 5.0 <= float(str(record["seconds"])) < 60.0
    own = psutil.Process().memory_info().rss / 2**30
    assert own * 0.5 < float(str(record["peak_gib"])) < psutil.virtual_memory().total / 2**30
    text = json.dumps(record)
    assert str(Path(__file__).parents[2]) not in text
    versions = record["versions"]
    assert isinstance(versions, dict)
    assert versions["torch"]
    assert set(versions) == {"python", "torch", "transformers", "vllm", "hydra-core", "wandb", "oar"}


def test_processors_of_one_name_with_other_vector_instructions_are_told_apart() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("AVX2", "AVX512"):
        pytest.skip(f"torch does not choose its kernels by these flags here ({capability})")
    model = cpu_model()
    assert model is not None
    assert "avx2" in model
    assert ("avx512f" in model) == (capability == "AVX512")
    assert ("avx512_bf16" in model) == torch.cpu.get_capabilities()["avx512_bf16"]


@pytest.mark.parametrize(
    ("gpu", "cpu", "expected"),
    [
        (None, "A", ["A"]),
        ("G", "A", ["G"]),
        (None, ["A", "B", "A"], ["A", "B"]),
        ([None, "G", None], ["A", "B", "A"], ["A", "G"]),
        (["G", None, "G"], "A", ["G", "A"]),
    ],
)
def test_each_run_has_its_gpu_or_else_its_processor(gpu: object, cpu: object, expected: list[str]) -> None:
    assert machines({"gpu": gpu, "cpu": cpu}) == expected
