from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.compare import compare
from experiments.stability.gathering import gather
from experiments.stability.levels import compare_levels
from experiments.study.studies import arm_differences
from experiments.table1.page import problems_of, read_cells, write_table1
from oar.analysis.arms import METRICS, difference
from oar.analysis.claims.claims import TOO_FEW
from oar.analysis.reports.differences import differences_section, method_differences, needed_text
from oar.analysis.reports.methods import BASE, kind, label, look, method_order
from oar.common.errors import DataError
from oar.evaluation.graded import read_evaluation
from oar.runs.folder import read_run
from oar.statistics.accuracy import Accuracy
from oar.statistics.intervals import RESAMPLES, student_p
from oar.statistics.power import seeds_needed, smallest_shown
from tests.experiments.made_runs import Scores, make_run

Cell = tuple[str, Path]
CONF = Path(__file__).parents[2] / "conf" / "method"
# By method and seed the share of right samples of each problem; a tier of one problem weighs as much as one of three.
MADE: dict[tuple[str, int], Scores] = {
    ("grpo", 1): {"words1": [0.5, 0.5, 0.0], "words2": [0.25]},
    ("grpo", 2): {"words1": [0.5, 0.0, 0.25], "words2": [0.5]},
    ("shuffled", 1): {"words1": [1.0, 0.5, 0.0], "words2": [0.25]},
    ("shuffled", 2): {"words1": [1.0, 0.25, 0.25], "words2": [0.75]},
}


def made(folder: Path, of: dict[tuple[str, int], Scores] = MADE, **more: Any) -> list[Cell]:
    return [(method, make_run(folder, method, seed, scores, **more)) for (method, seed), scores in of.items()]


def compared(cells: list[Cell], kept: Path) -> pd.DataFrame:
    return method_differences(read_cells(cells, kept), METRICS)


def row(table: pd.DataFrame, benchmark: str = "mean", metric: str = "avg@k") -> dict[str, Any]:
    (found,) = table[(table["benchmark"] == benchmark) & (table["metric"] == metric)].to_dict("records")
    return found


def test_differences_by_hand(tmp_path: Path) -> None:
    table = compared(made(tmp_path), tmp_path / "scores.parquet")
    assert table["method"].unique().tolist() == ["shuffled"]
    assert table["benchmark"].unique().tolist() == ["words1", "words2", "mean"]
    assert row(table, "words1")["difference"] == pytest.approx((100 / 6 + 25) / 2)
    mean = row(table)  # seed 1: (16.67 + 0) / 2, seed 2: (25 + 25) / 2
    by_seed = np.array([100 / 12, 25.0])
    assert mean["difference"] == pytest.approx(by_seed.mean())
    assert mean["sd"] == pytest.approx(by_seed.std(ddof=1))
    assert (mean["seeds"], mean["problems"], mean["kind"], mean["against"]) == (2, 4, "control", "grpo")
    reach = 12.706 * by_seed.std(ddof=1) / 2**0.5
    assert mean["student_low"] == pytest.approx(mean["difference"] - reach, rel=1e-3)
    assert mean["student_high"] == pytest.approx(mean["difference"] + reach, rel=1e-3)
    assert mean["seeds_needed"] == seeds_needed(mean["difference"], mean["sd"])
    assert mean["seeds_needed_from"] <= mean["seeds_needed"] <= mean["seeds_needed_to"]
    assert mean["smallest_shown"] == smallest_shown(2, mean["sd"])
    assert mean["interval_over"] == "problems and seeds"
    assert pd.isna(row(table, "words1")["sd"])


@pytest.mark.parametrize(("below", "at", "p"), [(200, 100, 602 / 20_001), (0, 0, 2 / 20_001), (0, RESAMPLES, 1.0)])
def test_the_p_of_draws_is_that_of_the_smaller_tail_twice(below: int, at: int, p: float) -> None:
    """Draws of no difference are in both tails, and a tail that no draw reached is not impossible."""
    difference_drawn = np.repeat([-1.0, 0.0, 2.0], [below, at, RESAMPLES - below - at])
    for drawn in (difference_drawn, -difference_drawn):
        draws = np.stack([50 + drawn + 1e-12, np.full(RESAMPLES, 50.0)], axis=1)  # sums leave some digits behind
        assert difference(Accuracy(np.array([[52.0, 50.0]]), draws))["p"] == pytest.approx(p)


def test_without_draws_the_p_is_students() -> None:
    by_seed = np.array([[51.0, 50.0], [52.0, 50.0], [56.0, 50.0]])
    assert difference(Accuracy(by_seed, None))["p"] == pytest.approx(student_p([1.0, 2.0, 6.0]))


def three_seeds(folder: Path) -> list[Path]:
    """GRPO and OAR-P, alike under three seeds: the bootstrap decides. Benchmarks are not in the order of their names."""
    rng, made = np.random.default_rng(2), []
    for method, skill in (("grpo", 0.4), ("oar_p", 0.5)):
        scores = {name: rng.binomial(3, skill, size=n) / 3 for name, n in (("words2", 30), ("words1", 12))}
        made.append([make_run(folder, method, seed, scores, k=3) for seed in (1, 2, 3)])
    return [one for pair in zip(*made, strict=True) for one in pair]


def table1(folders: list[Path], out: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Table 1's own difference of OAR-P from GRPO, and its claim about the same."""
    cells = [(one.name.split("-seed")[0], one) for one in folders]
    provenance = {"command": "x", "config_hash": "abc", "git_commit": None, "versions": {}}
    write_table1(cells, out, provenance=provenance)
    claims = pd.read_csv(out / "claims.csv").set_index(["claim_id", "metric"])
    return row(pd.read_csv(out / "differences.csv")), claims.loc[("average, OAR-P over GRPO", "avg@k")]


def test_a_quantity_has_one_interval_whichever_page_shows_it(tmp_path: Path) -> None:
    folders = three_seeds(tmp_path / "runs")
    difference, claim = table1(folders, tmp_path / "out")
    expected = (difference["difference"], difference["low"], difference["high"], difference["interval_over"])
    assert (claim["value"], claim["low"], claim["high"], claim["interval_over"]) == expected
    study = [read_run(one, arm=one.name.split("-seed")[0]) for one in folders]
    found = row(arm_differences(study, reference="grpo").assign(benchmark="mean"))
    assert (found["difference"], found["low"], found["high"], found["interval_over"]) == expected
    levels = compare_levels(gather([tmp_path / "runs"]), ["method.name"], ["grpo"])
    cell = levels.cells["oar_p",]
    assert tuple(cell[f"difference avg@k{end}"] for end in ("", " low", " high", " interval over")) == expected
    # A committed table has no samples, only scores.parquet.
    for folder in folders:
        (folder / "samples.parquet").unlink()
    again, claim_again = table1(folders, tmp_path / "out")
    assert (again["low"], again["high"]) == expected[1:3]
    assert claim_again.equals(claim)


def test_one_seed_is_what_two_evaluations_compared_are(tmp_path: Path) -> None:
    folders = three_seeds(tmp_path / "runs")[:2]
    difference, claim = table1(folders, tmp_path / "out")
    pair = compare(read_evaluation(folders[1]), read_evaluation(folders[0]))
    found = row(pair)
    expected = (found["ci_low"], found["ci_high"])
    assert (difference["low"], difference["high"]) == (claim["low"], claim["high"]) == expected
    assert (pd.isna(difference["student_low"]), needed_text(difference)) == (True, "")
    assert (claim["verdict"], claim["reason"]) == (TOO_FEW, "1 of 3 seeds, 3 of 100 steps")
    assert "over problems, one seed" in (tmp_path / "out" / "table1.md").read_text().split("## Provenance")[0]


def test_committed_scores_give_the_same_as_the_samples(tmp_path: Path) -> None:
    cells, kept = made(tmp_path), tmp_path / "scores.parquet"
    problems = problems_of(read_cells(cells, kept))
    assert len(problems) == 4 * 2 * 4
    assert problems.query("method == 'shuffled' and seed == 2 and metric == 'avg@k'")["right"].tolist() == [4, 1, 1, 3]
    before = compared(cells, kept)
    problems.to_parquet(kept, index=False)
    for _, folder in cells:
        (folder / "samples.parquet").unlink()
    pd.testing.assert_frame_equal(compared(cells, kept), before)
    problems.assign(problem_id=problems["problem_id"].where(problems["method"] != "grpo", "x")).to_parquet(kept)
    with pytest.raises(DataError, match="must be evaluated on the same problems of words1"):
        compared(cells, kept)


def test_scores_of_another_run_are_refused(tmp_path: Path) -> None:
    cells, kept = made(tmp_path), tmp_path / "scores.parquet"
    evaluation = cells[0][1] / "evaluation.csv"
    scores = pd.read_csv(evaluation)
    scores.assign(value=40.0).to_csv(evaluation, index=False)
    with pytest.raises(DataError, match=r"grpo, seed 1: .* averages to 33.333, but its evaluation.csv says 40"):
        read_cells(cells, kept)
    pd.DataFrame({"method": ["grpo"]}).to_parquet(kept)
    with pytest.raises(DataError, match="must have the columns"):
        read_cells(cells, kept)


def test_the_section_says_what_it_shows(tmp_path: Path) -> None:
    table = compared(made(tmp_path), tmp_path / "none")
    text = differences_section(table)
    assert "| avg@k | shuffled (control) | +16.7 | [" in text
    assert f"| 2 | {needed_text(row(table))} |" in text
    assert "A *control* keeps the learner" in text
    assert "*oracle*" not in text
    assert "These are 2 comparisons: were there no difference anywhere, about 0.1 intervals" in text
    assert "No control was run" in differences_section(table.assign(kind="method"))


def test_a_method_is_held_against_its_own_control(tmp_path: Path) -> None:
    names = {"grpo": "grpo", "shuffled": "oar_p"}
    both = {(names[method], seed): scores for (method, seed), scores in MADE.items()}
    both |= {("oar_p_shuffled", seed): {"words1": [0.5, 0.5, 0.5], "words2": [0.0]} for seed in (1, 2)}
    table = compared(made(tmp_path, both), tmp_path / "none")
    means = table[(table["benchmark"] == "mean") & (table["metric"] == "avg@k")].set_index(["method", "against"])
    assert means.index.tolist() == [("oar_p", "grpo"), ("oar_p_shuffled", "grpo"), ("oar_p", "oar_p_shuffled")]
    # seed 1: (50 + 25) / 2 - 25, seed 2: (50 + 75) / 2 - 25
    assert means.loc[("oar_p", "oar_p_shuffled"), "difference"] == pytest.approx((12.5 + 37.5) / 2)
    assert means["kind"].tolist() == ["method", "control", "method"]
    of_grpo, of_control = differences_section(table).split("minus its control")
    assert "| avg@k | OAR-P shuffled (control) |" in of_grpo
    assert "| avg@k | OAR-P | +25.0 | [" in of_control
    assert "minus its control" not in differences_section(table[table["against"] == "grpo"])


def test_kinds_are_what_the_configs_say() -> None:
    for path in CONF.glob("*.yaml"):
        said = path.read_text().split(":")[0].removeprefix("# ").lower()
        assert kind(path.stem) == (said if said in ("control", "oracle") else "method"), path.stem
    order = sorted(["oracle_error", "shuffled", "oar_gn", "oar_p", "grpo", BASE, "random"], key=method_order)
    assert order == [BASE, "grpo", "oar_p", "oar_gn", "random", "shuffled", "oracle_error"]
    assert [label(one) for one in order[-2:]] == ["shuffled (control)", "oracle_error (oracle)"]
    assert sorted(["oar_p_shuffled", "oar_gn", "oar_p"], key=method_order) == ["oar_p", "oar_gn", "oar_p_shuffled"]
    assert label("oar_p_position") == "OAR-P position (control)"
    assert look("oar_p_shuffled")[1:3] == look("oar_p")[1:3]  # colour and marker
    assert look("oar_p_position").colour == look("oar_p").colour
    assert look("oar_p_position").marker != look("oar_p_shuffled").marker  # one picture has both
