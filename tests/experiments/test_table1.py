import json
import re
from pathlib import Path

import pandas as pd
import pytest
from hydra import initialize_config_dir

from experiments.table1 import page
from experiments.table1.__main__ import already_there, arms, commands, overview, plan
from experiments.table1.page import seconds_by_stage, write_table1
from oar.analysis.claims.claims import REFERENCE
from oar.command_line.overrides import CONF
from oar.common.errors import ConfigError, DataError
from oar.config import Table1Config, validated
from oar.config.composed import composed_run
from oar.runs.folder import read_run
from tests.config.test_config import composed
from tests.experiments.made_runs import describe_run, write_lines

PROVENANCE: dict[str, object] = {
    "command": "x",
    "config_hash": "abc",
    "git_commit": None,
    "versions": {"torch": "2", "oar": None},
}
PNG = b"\x89PNG\r\n\x1a\n"
Cell = tuple[str, Path]


def make_cell(folder: Path, method: str, seed: int, words1: float, words2: float, step_seconds: float = 0.0) -> Cell:
    """Greedy is ten points above sampling; two tiers and their mean."""
    folder = folder / f"{method}-{seed}"
    folder.mkdir(parents=True)
    values = {"words1": words1, "words2": words2, "mean": (words1 + words2) / 2}
    rows = [
        {"benchmark": name, "metric": metric, "k": k, "temperature": temperature, "value": value + bonus, "n": n}
        for metric, k, temperature, bonus in (("pass@1", 1, 0.0, 10.0), ("avg@k", 4, 1.0, 0.0))
        for (name, value), n in zip(values.items(), (200, 100, 300), strict=True)
    ]
    pd.DataFrame(rows).to_csv(folder / "evaluation.csv", index=False)
    describe_run(folder, method, seed, data={})
    if method != "base":
        rewards = [{"train/reward_mean": reward, "train/entropy": 0.3} for reward in (0.5, 0.6, 0.7)]
        write_lines(folder / "metrics.jsonl", rewards)
        # a slow first step
        write_lines(folder / "timings.jsonl", [{"total": step_seconds * slow} for slow in (9.0, 1.0, 1.0)])
    return method, folder


def two_seeds(folder: Path) -> list[Cell]:
    return [
        make_cell(folder, "oar_p", 0, 50, 30, 6.0),
        make_cell(folder, "base", 0, 40, 20),
        make_cell(folder, "base", 1, 42, 22),
        make_cell(folder, "grpo", 0, 50, 30, 2.0),
        make_cell(folder, "grpo", 1, 56, 32, 2.0),
        make_cell(folder, "oar_p", 1, 58, 34, 6.0),
    ]


def write(cells: list[Cell], out: Path) -> str:
    write_table1(cells, out, provenance=PROVENANCE)
    return (out / "table1.md").read_text()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of `two_seeds`."""
    folder = tmp_path_factory.mktemp("table1")
    write(two_seeds(folder), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def text(out: Path) -> str:
    return (out / "table1.md").read_text()


def tables(text: str) -> list[dict[str, dict[str, str]]]:
    """Every table of the text as {first cell: {header: cell}}."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("|"):
            header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
            found.append({row[0]: dict(zip(header, row, strict=True)) for row in rows})
    return found


def test_the_csv_is_tidy_with_exactly_these_columns(out: Path) -> None:
    table = pd.read_csv(out / "table1.csv")
    assert list(table.columns) == ["profile", "method", "seed", "benchmark", "metric", "k", "value", "n"]
    assert len(table) == 6 * 2 * 3
    assert list(table["method"].unique()) == ["base", "grpo", "oar_p"]
    row = table.query("method == 'grpo' and seed == 1 and benchmark == 'words2' and metric == 'avg@k'").iloc[0]
    assert row.tolist() == ["embedded", "grpo", 1, "words2", "avg@k", 4, 32.0, 100]


def test_a_screen_shows_the_means_and_the_verdicts(out: Path) -> None:
    lines = overview(out).splitlines()
    assert len(lines) < 20
    assert lines[1].split() == ["words1", "words2", "mean"]
    assert "oar_p 54.0 32.0 43.0".split() in [line.split() for line in lines]
    assert any("OAR-P > GRPO" in line and "too few seeds to tell" in line for line in lines)


def test_a_screen_rounds_as_the_page_does(tmp_path: Path) -> None:
    """50.45 is a little more in binary; times ten it is half to even."""
    cells = [make_cell(tmp_path, "base", 0, 50.45, 20), make_cell(tmp_path, "grpo", 0, 50, 30, 2.0)]
    text = write(cells, tmp_path / "out")
    assert tables(text)[0]["Base model"]["words1"] == "50.5, n=1"
    assert ["base", "50.5", "20.0", "35.2"] in [line.split() for line in overview(tmp_path / "out").splitlines()]


def test_means_errors_and_differences_by_hand(text: str) -> None:
    assert text.count("Problems: words1 200, words2 100.") == 2
    sampled, greedy = tables(text)[:2]
    assert list(sampled) == ["Base model", "GRPO", "OAR-P"]
    assert list(sampled["GRPO"]) == ["method", "words1", "words2", "mean", "mean − base", "mean − GRPO", "overhead"]
    assert sampled["GRPO"]["words1"] == "53.0 ± 3.0, n=2"
    assert sampled["GRPO"]["mean"] == "42.0 ± 2.0, n=2"  # 40 and 44
    assert sampled["GRPO"]["mean − base"] == "+11.0 ± 1.0, n=2"  # 40 - 30 and 44 - 32: paired, not 2.2
    assert sampled["OAR-P"]["mean − GRPO"] == "+1.0 ± 1.0, n=2"  # 40 - 40 and 46 - 44
    assert sampled["GRPO"]["mean − GRPO"] == ""
    assert sampled["Base model"]["mean − base"] == ""
    assert greedy["GRPO"]["words1"] == "63.0 ± 3.0, n=2"


def test_overhead_is_the_ratio_of_median_steps(text: str) -> None:
    table = tables(text)[0]
    assert table["GRPO"]["overhead"] == "1.00x (2.00 s/step)"  # the slow first step does not count
    assert table["OAR-P"]["overhead"] == "3.00x (6.00 s/step)"
    assert table["Base model"]["overhead"] == ""


def test_no_overhead_is_told_between_machines(tmp_path: Path) -> None:
    cells = [make_cell(tmp_path, method, 0, 50, 30, of) for method, of in (("grpo", 20.0), ("oar_p", 4.0))]
    evaluation = json.loads((cells[1][1] / "evaluation.json").read_text())
    evaluation["provenance"]["gpu"] = "fast"
    (cells[1][1] / "evaluation.json").write_text(json.dumps(evaluation))
    (sampled, *_) = tables(write(cells, tmp_path / "out"))
    assert (sampled["GRPO"]["overhead"], sampled["OAR-P"]["overhead"]) == ("1.00x (20.00 s/step)", "(4.00 s/step)")


def test_seeds_may_have_run_on_different_machines(tmp_path: Path) -> None:
    """GRPO and OAR-P on a slow one, 20 and 30 s a step, and on a fast one, 2 and 4 s."""
    seconds = {("grpo", 0): 20.0, ("grpo", 1): 2.0, ("oar_p", 0): 30.0, ("oar_p", 1): 4.0, ("oar_g", 1): 3.0}
    cells = [make_cell(tmp_path, method, seed, 50, 30, of) for (method, seed), of in seconds.items()]
    for _, folder in cells:
        evaluation = json.loads((folder / "evaluation.json").read_text())
        evaluation["provenance"] |= {"cpu": "slow", "gpu": "fast" if folder.name.endswith("1") else None}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    text = write(cells, tmp_path / "out")
    overheads = {method: row["overhead"] for method, row in tables(text)[0].items()}
    assert overheads == {
        "GRPO": "1.00x (11.00 s/step)",
        "OAR-G": "1.50x (3.00 s/step)",
        "OAR-P": "1.73x (17.00 s/step)",  # the root of 1.5 x 2
    }
    record = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert record["gpu"] == ["fast" if cell["seed"] == 1 else None for cell in record["cells"]]
    assert record["cpu"] == "slow"
    table = seconds_by_stage([read_run(folder, arm=method) for method, folder in cells])
    assert set(zip(table["method"], table["machine"], strict=True)) == {
        ("GRPO", "slow"),
        ("GRPO", "fast"),
        ("OAR-P", "slow"),
        ("OAR-P", "fast"),
        ("OAR-G", "fast"),
    }


def test_where_the_seconds_go_by_hand(tmp_path: Path) -> None:
    """A run of 100 seconds; what is neither a stage nor the curve is its start and its end. Means over seeds."""
    cells = two_seeds(tmp_path)
    for at, generation in ((3, 5.0), (4, 7.0)):
        step = {"generation": generation, "update": 2.0, "evaluation": 1.5, "total": 9.0}
        write_lines(cells[at][1] / "timings.jsonl", [step] * 4)
    table = seconds_by_stage(
        sorted((read_run(folder, arm=method) for method, folder in cells), key=lambda run: run.arm)
    )
    assert list(table["method"]) == ["Base model", "GRPO", "OAR-P"]
    assert list(table.columns[1:]) == ["generation", "update", "curve", "start and final evaluation", "whole run"]
    assert list(table.iloc[1, 1:]) == [24, 8, 6, 62, 100]
    assert list(table.iloc[0, 4:]) == [100, 100]
    assert table.iloc[0, 1:4].isna().all()


@pytest.mark.parametrize("told", [{"first_step": 3, "seconds": 90}, {"seconds": 20}])
def test_a_run_that_was_taken_up_again_has_no_whole_seconds(tmp_path: Path, told: dict[str, int]) -> None:
    """They are its last process's. Where a run of old does not say so, its stages took longer than that."""
    method, folder = make_cell(tmp_path, "grpo", 0, 50, 30)
    write_lines(folder / "timings.jsonl", [{"generation": 6.0, "total": 6.0}] * 4)
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["provenance"] |= told
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    table = seconds_by_stage([read_run(folder, arm=method)])
    assert table["generation"].item() == 24
    assert table[["start and final evaluation", "whole run"]].isna().all(axis=None)


def test_one_seed_has_no_standard_error(tmp_path: Path) -> None:
    cells = [make_cell(tmp_path, "base", 0, 40, 20), make_cell(tmp_path, "grpo", 0, 50, 30, 2.0)]
    table = tables(write(cells, tmp_path / "out"))[0]
    assert table["GRPO"]["words1"] == "50.0, n=1"
    assert table["GRPO"]["mean − base"] == "+10.0, n=1"


def test_methods_without_a_common_seed_or_baseline_have_no_difference(tmp_path: Path) -> None:
    cells = [make_cell(tmp_path, "base", 0, 40, 20), make_cell(tmp_path, "entropy", 1, 50, 30, 2.0)]
    row = tables(write(cells, tmp_path / "out"))[0]["entropy (control)"]
    assert (row["mean − base"], row["mean − GRPO"], row["overhead"]) == ("", "", "(2.00 s/step)")


def test_the_papers_numbers_stand_apart_and_blanks_stay_blank(out: Path, text: str) -> None:
    ours, separator, theirs = text.partition("\n# What the paper reports (not measured here)\n")
    assert separator
    reference = pd.read_csv(REFERENCE / "paper.csv", dtype=str, keep_default_na=False)
    numbers = ["90.5", "75.8", "51.3", "92.4", "78.7", "53.7"]
    csv = (out / "table1.csv").read_text()
    for number in numbers:
        assert number in theirs
        assert number not in ours
        assert number not in csv
    assert "2601.07408" in theirs
    oar_p = reference.set_index("method").loc["OAR-P"]
    assert [oar_p[name] for name in ("GSM8K", "MATH500", "AIME24", "AIME25", "AMC23")] == [""] * 5
    assert "| Qwen2.5-7B | OAR-P |  |  |  |  |  | 53.7 | 4.2 |" in theirs
    assert "| nan" not in text.lower()


def test_benchmarks_of_different_k(tmp_path: Path) -> None:
    cells = two_seeds(tmp_path)
    for _, folder in cells:
        frame = pd.read_csv(folder / "evaluation.csv")
        sampled = frame["metric"] == "avg@k"
        frame.loc[sampled & (frame["benchmark"] == "words2"), "k"] = 32
        frame["k"] = frame["k"].astype("Int64").mask(sampled & (frame["benchmark"] == "mean"))
        frame.to_csv(folder / "evaluation.csv", index=False)
    text = write(cells, tmp_path / "out")
    assert "## avg@k (sampled at temperature 1)\n\nProblems: words1 200 (k = 4), words2 100 (k = 32)." in text
    assert "## pass@1 (greedy)\n\nProblems: words1 200, words2 100." in text
    assert pd.read_csv(tmp_path / "out" / "table1.csv", dtype=str)["k"].dropna().unique().tolist() == ["1", "4", "32"]


def test_the_claim_ledger_ends_the_table(out: Path, text: str) -> None:
    section = text.split("\n# The paper's claims, tested on profile `embedded`\n")[1]
    # The same +1.0 ± 1.0 over two seeds as the table's: Student's t of one degree of freedom is 12.7.
    assert "| avg@k | +1.0 [-11.7, +13.7] points | seeds | 300 x 4 | 0, 1 |" in section
    assert "| OAR-P > OAR-G | needs runs with method=oar_g gating=bilevel |" in section
    ledger = pd.read_csv(out / "claims.csv")
    assert ledger.groupby("verdict")["claim_id"].nunique()["not run"] == 22
    assert ledger.dropna(subset="value")["claim_id"].unique().tolist() == ["average, OAR-P over GRPO"]


def test_regimes_are_those_of_all_models_and_named_by_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "ROOT", tmp_path)
    assert page.costs_in_regimes() is None
    runs = pd.DataFrame({"condition": ["one", "share"], "arm": "grpo", "steps": [5, 9]})
    for folder in ("smollm2/ceilings", "ceilings"):
        (tmp_path / "results" / folder).mkdir(parents=True)
        runs.to_csv(tmp_path / "results" / folder / "steps.csv", index=False)
    found = page.costs_in_regimes()
    assert found is not None
    assert found["condition"].tolist() == ["one", "share", "SmolLM2 one", "SmolLM2 share"]
    assert found["steps"].tolist() == [5, 9, 5, 9]


def test_pictures_and_provenance_are_there(out: Path, text: str) -> None:
    for name in ("table1.png", "curves.png"):
        assert (out / name).read_bytes().startswith(PNG)
    record = json.loads((out / "provenance.json").read_text())
    assert record["config_hash"] == "abc"
    assert record["cells"][0] == {"method": "base", "seed": 0, "seconds": 100.0}
    assert len(record["cells"]) == 6
    assert "| GRPO | 100, 100 |" in text
    assert "| git_commit | c0ffee |" in text  # of the runs, whichever of them this command made
    assert sorted(path.name for path in (out).iterdir()) == [
        "claims.csv", "curves.png", "differences.csv", "provenance.json", "table1.csv", "table1.md", "table1.png",
    ]  # fmt: skip


def test_mean_rewards_of_some_cells_stay_out_of_the_table(tmp_path: Path) -> None:
    cells = two_seeds(tmp_path)
    write(cells, tmp_path / "out")
    plain = (tmp_path / "out" / "table1.csv").read_bytes()
    file = cells[0][1] / "evaluation.csv"
    scores = pd.read_csv(file)
    rewards = scores[scores["metric"] == "avg@k"].assign(metric="reward@k", value=0.5)
    pd.concat([scores, rewards]).to_csv(file, index=False)
    write(cells, tmp_path / "out")
    assert (tmp_path / "out" / "table1.csv").read_bytes() == plain


def test_cells_that_cannot_stand_in_one_table_are_refused(tmp_path: Path) -> None:
    cells = two_seeds(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(DataError, match="at least one finished cell"):
        write([], out)
    with pytest.raises(DataError, match="twice"):
        write([*cells, cells[0]], out)
    of_paper = make_cell(tmp_path / "paper", "oar_g", 0, 50, 30, 6.0)
    describe_run(of_paper[1], "oar_g", 0, data={}, profile="paper")
    with pytest.raises(DataError, match="within one profile"):
        write([*cells, of_paper], out)
    _, first = cells[0]
    for name in ("evaluation.csv", "timings.jsonl", "metrics.jsonl", "config.yaml"):
        (first / name).rename(tmp_path / name)
        with pytest.raises(DataError, match=f"{re.escape(name)} is missing"):
            write(cells, out)
        (tmp_path / name).rename(first / name)
    shorter = pd.read_csv(first / "evaluation.csv")
    for other in (shorter[shorter["benchmark"] != "words2"], shorter.replace({"n": {200: 100}})):
        other.to_csv(first / "evaluation.csv", index=False)
        with pytest.raises(DataError, match=r"do not measure .* alike"):
            write(cells, out)
    assert not out.exists()


def test_methods_beside_their_own_weights_on_other_tokens() -> None:
    cfg = validated(composed("profile=laptop", name="table1"), Table1Config)
    assert cfg.shuffled == cfg.methods, "conf/table1_methods has it"
    assert arms(cfg)[:4] == ["base", "grpo", "oar_g", "oar_g_shuffled"]
    assert arms(cfg)[4:] == [name + end for name in cfg.methods[2:] for end in ("", "_shuffled")]
    plain = validated(composed(name="table1"), Table1Config)
    assert arms(plain) == ["base", "grpo", "oar_g", "oar_p"]
    one = validated(composed("shuffled=[oar_p]", name="table1"), Table1Config)
    assert arms(one) == ["base", "grpo", "oar_g", "oar_p", "oar_p_shuffled"]
    with pytest.raises(ConfigError, match=r"shuffled must be a list of some of .*oar_p.*oar_ga"):
        validated(composed("shuffled=[oar_ga]", name="table1"), Table1Config)


def test_what_other_commands_finished_here_stands_in_the_table(tmp_path: Path) -> None:
    """Their method or seed was not asked for; another rate, other steps, an unknown method and a run without an end stay out."""

    def finish(arm: str, seed: int, steps: int, *overrides: str) -> None:
        folder = tmp_path / "cells" / f"{arm}-seed{seed}"
        folder.mkdir(parents=True)
        settings = composed_run([f"seed={seed}", f"learner.steps={steps}", *overrides])
        made = {"identity": settings.identity(), "measure": settings.measure(), "step": steps}
        (folder / "evaluation.json").write_text(json.dumps({"provenance": made}))

    (tmp_path / "cells" / "entropy-seed1").mkdir(parents=True)
    cfg = validated(composed("methods=[grpo]", "seeds=1", "steps=5", name="table1"), Table1Config)
    with initialize_config_dir(str(CONF), version_base=None):
        finish("base", 2, 0, "method=grpo")
        finish("grpo", 1, 5, "method=grpo")
        finish("oar_g", 1, 5, "method=oar_g")
        finish("oar_g_shuffled", 3, 5, "method=oar_g", "method.control=shuffled")
        finish("oar_p", 1, 5, "method=oar_p", "learner.lr=1e-3")
        finish("oar_gn", 1, 4, "method=oar_gn")
        finish("gone", 1, 5)
        (tmp_path / "cells" / "oar_g-seed1").rename(tmp_path / "cells" / "oar_g-seed1-old")  # put aside by a person
        finish("oar_g", 1, 5, "method=oar_g")
        typed = ["methods=[grpo]", "seeds=1", "steps=5"]
        found = already_there(cfg, typed, tmp_path, plan(cfg, typed, tmp_path))
    assert [(job.arm, job.settings.seed) for job in found] == [("base", 2), ("oar_g", 1), ("oar_g_shuffled", 3)]


def test_all_commands_of_a_table_are_kept(tmp_path: Path) -> None:
    assert commands(tmp_path, but="c") == []
    (tmp_path / "provenance.json").write_text(json.dumps({"command": "b", "earlier": ["a", "c"]}))
    assert commands(tmp_path, but="c") == ["a", "b"]
    write_table1(two_seeds(tmp_path), tmp_path / "out", provenance={**PROVENANCE, "earlier": ["first"]})
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "```\nfirst\nx\n```" in text
