"""Committed results judged anew say what they said when their runs were there, and older ones what today's rules say."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from experiments.reanalyse import judge
from experiments.stability.gathering import gather
from experiments.stability.levels import compare_levels
from experiments.stability.page import write_stability
from experiments.study.page import write_results
from experiments.table1.page import write_table1
from oar.common.errors import DataError
from tests.experiments.made_runs import make_run, numbered_run, toy_study
from tests.experiments.test_studies import three_seeds

ANALYSIS = {"command": "judge", "git_commit": "beef"}
MADE = {"command": "make", "git_commit": "c0ffee", "versions": {}}


def texts(folder: Path) -> dict[str, str]:
    """Tables and pages, without the line that names the analysis."""
    files = [file for file in folder.iterdir() if file.suffix in (".csv", ".md")]
    return {file.name: re.sub(r"\| analysis \| .*\n", "", file.read_text()) for file in files}


def judged(folder: Path) -> dict[str, str]:
    judge(folder, analysis=ANALYSIS)
    made = json.loads((folder / "provenance.json").read_text())
    assert (made["git_commit"], made["analysis"]) == ("c0ffee", ANALYSIS)
    (page,) = folder.glob("*.md")
    assert page.read_text().count("| analysis | command judge, git_commit beef |") == 1
    return texts(folder)


def make_study(tmp_path: Path) -> Path:
    write_results(toy_study(), three_seeds(tmp_path / "runs"), tmp_path / "toy", MADE)
    return tmp_path / "toy"


def test_a_study(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    before = texts(folder)
    assert judged(folder) == before
    assert judged(folder) == before  # and again


def test_a_study_of_before_there_were_rates(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    before, made = texts(folder), json.loads((folder / "provenance.json").read_text())
    del made["study"]["rates"]
    (folder / "provenance.json").write_text(json.dumps(made))
    assert judged(folder) == before


def test_what_todays_statistics_say_differently_is_written_anew(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    before = texts(folder)
    table = pd.read_csv(folder / "differences.csv")
    table.assign(low=0.0, high=0.0, student_low=0.0, p=1.0).to_csv(folder / "differences.csv", index=False)
    page = folder / "toy.md"
    page.write_text(re.sub(r"\| default \| `oar_g` \| \+6.2 .*", "| default | `oar_g` | as it was |", page.read_text()))
    assert judged(folder) == before
    values = pd.read_csv(folder / "scores.csv")
    values.assign(value=values["value"].where(values["arm"] == "grpo", 99.0)).to_csv(folder / "scores.csv", index=False)
    with pytest.raises(DataError, match="not of the same runs"):
        judge(folder, analysis=ANALYSIS)


@pytest.mark.parametrize("setting", ["gating", "tau"])
def test_a_sweep(tmp_path: Path, setting: str) -> None:
    values: tuple[object, ...] = ("bilevel", "boost_only") if setting == "gating" else (0.4, 0.7)
    folder = tmp_path / "runs"
    for number, (value, seed) in enumerate((value, seed) for value in values for seed in (1, 2)):
        scores = {"a": [0.25 * ((problem + seed + number) % 4) for problem in range(8)]}
        numbered_run(folder, number, "oar_g", seed, scores, **{setting: value})
    gathered = gather([folder])
    key = "gating.name" if setting == "gating" else "gating.tau"
    levels = compare_levels(gathered, [key], [values[0]])
    out = tmp_path / "out"
    write_stability(gathered, levels, out)
    before = texts(out)
    assert "too few seeds to tell** (2 of 3 seeds, 3 of 100 steps)" in before["out.md"]
    assert judged(out) == before


def test_a_level_without_a_finished_run_keeps_its_place(tmp_path: Path) -> None:
    for number, tau in enumerate((0.4, 0.7)):
        numbered_run(tmp_path / "runs", number, "oar_g", 1, {"a": [0.5, 1.0]}, tau=tau)
    (tmp_path / "runs" / "1" / "evaluation.json").unlink()
    gathered, out = gather([tmp_path / "runs"]), tmp_path / "out"
    write_stability(gathered, compare_levels(gathered, ["gating.tau"], [0.4]), out)
    before = texts(out)
    assert "| 0.4 | 1 of 1 | 1 | 75.0" in before["out.md"]
    assert "| 0.7 | 0 of 1 |  |  |  |  |  |" in before["out.md"]
    assert judged(out) == before


def test_table_1(tmp_path: Path) -> None:
    out, cells = tmp_path / "out", []
    for seed in (1, 2, 3):
        for method, shift in (("grpo", 0), ("oar_p", 1)):
            scores = {"words1": [((problem + seed + shift) % 5) / 4 for problem in range(10)]}
            one = make_run(out / "cells", method, seed, scores)
            cells.append((method, one))
    write_table1(cells, out, provenance={**MADE, "config_hash": "abc"})
    before = texts(out)
    for _, one in cells:
        (one / "samples.parquet").unlink()
    assert judged(out) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must hold one of table1\.csv, levels\.csv, scores\.csv"):
        judge(tmp_path, analysis=ANALYSIS)


def test_a_folder_that_does_not_say_what_measured_it_is_refused(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    (folder / "provenance.json").unlink()
    with pytest.raises(DataError, match=r"but has no provenance\.json: copy it there"):
        judge(folder, analysis=ANALYSIS)
