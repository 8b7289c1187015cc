"""`python -m experiments.data_check` and a run on contaminated data: exit codes, files, and one sentence."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.programs import ROOT, run

PUBLIC = ROOT / "tests" / "data" / "public"


def test_clean_data(tmp_path: Path) -> None:
    code, output = run("data_check", f"path={PUBLIC}", f"output_dir={tmp_path}")
    assert code == 0, output
    table = pd.read_csv(tmp_path / "data_check.csv")
    trained = table[table["in"].str.endswith("_train")]
    assert len(trained) == 2 * 6
    assert set(trained["verdict"]) == {"clean"}
    (amc,) = table.query("`in` == 'amc83' and `problems of` == 'amc23'").to_dict("records")
    assert (amc["n"], amc["exact"], amc["verdict"]) == (2, 2, "2 copied")
    report = (tmp_path / "data_check.md").read_text()
    assert "| math_train | math500 | 2 | 0 | 0 | clean |" in report
    assert "| amc83 | amc23 | 2 | 2 | 0 | 2 copied |" in report
    assert "amc23" in output
    assert json.loads((tmp_path / "provenance.json").read_text())["data"]["math500"]["file"] == "math500.jsonl"


def test_one_benchmark_has_no_other_to_be_compared_with(tmp_path: Path) -> None:
    code, output = run("data_check", f"path={PUBLIC}", "benchmarks=[amc23]", "train=[gsm8k]", f"output_dir={tmp_path}")
    assert code == 0, output
    assert "Empty DataFrame" not in output
    assert "Benchmarks in benchmarks" not in (tmp_path / "data_check.md").read_text()


def test_contaminated_data(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    shutil.copy(PUBLIC / "amc83.jsonl", file)
    code, output = run("data_check", f"path={PUBLIC}", f"train_files=[{file}]", f"output_dir={tmp_path}")
    assert code == 1
    assert "mine holds 2 problems of amc23" in output
    copies = pd.read_csv(tmp_path / "copies.csv").query("`in` == 'mine' and `problems of` == 'amc23'")
    assert copies[["benchmark_id", "train_id", "kind"]].to_numpy().tolist() == [[0, 0, "exact"], [1, 1, "exact"]]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train=[words]"], "train must name data sets, but words is generated"),
        (["benchmarks=[words]"], "benchmarks must name data sets, but words is generated"),
        (["benchmarks=[gsm9k]"], "benchmark=gsm9k: benchmark must be one of aime24, "),
        (["train_files=[gsm8k.jsonl]"], "must name sets of different names"),
        (["train_files=[nowhere.jsonl]"], "nowhere.jsonl cannot be read"),
        (["train=[]"], "train must be with train_files at least one set, but is []"),
        (["overlap=0"], "overlap must be above 0 and at most 1"),
        (["path=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_compared(overrides: list[str], said: str, tmp_path: Path) -> None:
    code, output = run("data_check", f"path={PUBLIC}", *overrides, f"output_dir={tmp_path / 'out'}")
    assert code == 2
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert said in line
    assert not list(tmp_path.glob("out/*"))


def test_a_run_on_contaminated_data_starts_nothing(tmp_path: Path) -> None:
    local = ["data=local", f"data.source.path={PUBLIC / 'amc83.jsonl'}"]
    benchmark = ["benchmark=amc23", f"benchmark.path={PUBLIC}"]
    code, output = run("train", *local, *benchmark, "tracking=disabled", f"output_dir={tmp_path / 'run'}")
    assert code == 2
    assert "error: local holds 2 of the 2 problems of amc23" in output
    assert not (tmp_path / "run" / "config.yaml").exists()
