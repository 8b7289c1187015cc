"""The page of steps to a threshold: what its tables and its picture show, alone and beside an earlier page."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from experiments.reanalyse import judge
from experiments.study.ceilings import (
    added,
    committed_regimes,
    fastest,
    map_panels,
    standing_panels,
    summarised,
    write_ceilings,
)
from oar.analysis.reports.page import write_csv
from oar.common.errors import DataError
from tests.experiments.made_curves import KINDS, costs_of, made, runs_of
from tests.experiments.made_runs import toy_study


def test_the_picture_ends_at_minus_one() -> None:
    """One late run would squeeze all others."""
    rows = [
        ("one", arm, 1e-3, seed, True, steps, 0, 0.0)
        for arm, of in {"grpo": (30, 30), "oracle_causal": (20, 20), "oar_p": (25, 90)}.items()
        for seed, steps in enumerate(of)
    ]
    drawn = standing_panels(summarised(costs_of(rows), KINDS, "grpo"))["one"].set_index("arm").loc["oar_p"]
    assert [drawn[end] for end in ("low", "value", "high")] == [-1, -1, 0.5]


def test_the_map_has_regimes_of_five_seeds_and_arms_of_three_of_these() -> None:
    kinds = KINDS | {"oar_gn": "method"}
    rows = [
        (regime, arm, 1e-3, seed, True, steps, 0, 0.0)
        for regime, seeds in {"one": 5, "share": 5, "all": 5, "one_large": 4}.items()
        for arm, steps in {"grpo": 30, "oar_p": 20, "oar_gn": 25, "oracle_causal": 10}.items()
        for seed in range(seeds)
        if arm != "oar_gn" or regime in ("one", "all", "one_large")
    ]

    def mapped(rows: list[tuple[object, ...]]) -> dict[str, set[str]]:
        costs = costs_of(rows)
        panels = standing_panels(summarised(costs, kinds, "grpo"))
        return {name: set(own["arm"]) for name, own in map_panels(panels, fastest(costs, kinds, "grpo")).items()}

    assert mapped(rows) == {name: {"grpo", "oar_p"} for name in ("one", "share", "all")}
    assert not mapped([row for row in rows if row[0] != "all"])


def test_what_commands_add_for_their_runs() -> None:
    plain = "python -m experiments.study experiment=ceilings 'only=[one]' 'arms_of.one=[grpo]' output_dir=a/b.c"
    longer = f"{plain} learner.steps=400"
    commands = [plain, longer, longer, f"{plain} 'model.dtype=bfloat16' learner.steps=9"]
    assert added(commands, []) == {"learner.steps=400": 2, "model.dtype=bfloat16 learner.steps=9": 1}
    assert added([f"{plain} seeds_of.one=3 in_words.one=short arms.grpo=[]"], []) == {}  # of the study, for no run
    assert added(commands, ["learner.steps=400"]) == {"model.dtype=bfloat16 learner.steps=9": 1}


def test_the_page_and_the_same_page_again(tmp_path: Path) -> None:
    about = toy_study() | {"kinds": KINDS, "rates": [1e-3], "expected": {"one": {"oar_p": "90"}}}
    about |= {"conditions": {"one": []}, "in_words": {"one": "a few words"}, "arms": {arm: [] for arm in KINDS}}
    folder = tmp_path / "out"
    folder.mkdir()
    slower = [made(tmp_path / "runs", "grpo", seed, {0: 0.3, 40: 0.95}, rate=3e-4) for seed in (1, 2, 3)]
    runs = [*runs_of(tmp_path / "runs"), *slower]
    text = write_ceilings(about, runs, folder, {"command": "toy", "cpu": "one"}).read_text()
    assert "several processors" not in text
    assert (
        "| `oar_p` | method | 0.001 * | 20 [20, 20] | 1,600 [1,600, 1,600] | 10 [10, 10] | 0.50 | 3 of 3 | 0.91 |  | 90 |"
        in text
    )
    assert "| one | a few words | 3 | 30 [30, 30] | `oar_p` 20 [20, 20] | `oracle_causal` 10 [10, 10] |" in text
    assert "| 1 of 3 | 0.78 |" in text  # the control, whose last rewards are 0.95, 0.7 and 0.7
    assert "| `oar_p` | 3 : 0 of 3 | 3 : 0 of 3 |" in text
    assert "| `oar_p` | 30 [30, 30] | **20 [20, 20]** | 3 : 0 of 3 |" in text  # at 3e-4 and 1e-3, then against GRPO
    for name in ("standing.png", "rates.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert "map.png" not in text
    assert committed_regimes(folder)["one"]["practical"] == {"arm": "oar_p", "steps": 20.0}
    judge(folder, analysis={"command": "reanalyse"})
    again = (folder / "toy.md").read_text()
    assert [line for line in again.splitlines() if "| analysis |" not in line] == text.splitlines()


def test_a_page_says_why_an_arm_is_soon_where_it_was_measured(tmp_path: Path) -> None:
    about = toy_study() | {"kinds": KINDS, "rates": [1e-3], "conditions": {"one": []}, "expected": {}}
    write_ceilings(
        about | {"arms": {arm: [] for arm in KINDS}}, runs_of(tmp_path), tmp_path, {"command": "toy", "cpu": "one"}
    )
    page, steps = tmp_path / "toy.md", pd.read_csv(tmp_path / "steps.csv")

    def judged(costs: pd.DataFrame) -> str:
        write_csv(costs, tmp_path / "steps.csv")
        judge(tmp_path, analysis={"command": "reanalyse"})
        return page.read_text()

    assert "Why an arm is soon" not in judged(steps.drop(columns="alignment"))  # a page from before
    assert not (tmp_path / "alignment.png").exists()
    found = {"grpo": 0.2, "oar_p": 0.5, "oar_p_shuffled": 0.1, "oracle_causal": 0.9}
    text = judged(steps.assign(alignment=steps["arm"].map(found)))
    assert "1.00 in one (4 arms)." in text
    assert "| 3 of 3 | 0.91 |  | 0.50 |" in text
    assert (tmp_path / "alignment.png").read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(tmp_path / "alignment.csv").set_index("arm")
    assert table.loc["oar_p"].tolist() == ["one", 0.5, 20, 3]


def test_a_page_where_nothing_stands_shows_the_rewards(tmp_path: Path) -> None:
    """No oracle was run, and nobody gets there: there is no gap in which an arm could stand."""
    about = toy_study() | {"kinds": KINDS, "rates": [1e-3], "conditions": {"one": []}, "expected": {}}
    about |= {"arms": {"grpo": [], "oar_p": []}}
    runs = [
        replace(made(tmp_path / "runs", arm, 1, {0: 0.3, 20: 0.5, 40: 0.7}), condition="one")
        for arm in ("grpo", "oar_p")
    ]
    folder = tmp_path / "out"
    folder.mkdir()
    text = write_ceilings(about, runs, folder, {"command": "toy", "cpu": "one"}).read_text()
    assert "(rewards.png)" in text
    assert "standing.png" not in text
    assert "rates.png" not in text
    assert (folder / "rewards.png").read_bytes().startswith(b"\x89PNG")
    assert "| one |  | 1 | not by 40 steps | not by 40 steps | not run |" in text


def test_runs_of_an_earlier_page_stand_beside_those_that_were_made_anew(tmp_path: Path) -> None:
    about = toy_study() | {"kinds": KINDS, "rates": [1e-3], "expected": {"one": {"oar_p": "90"}}}
    about |= {"conditions": {"one": ["a"]}, "in_words": {"one": "a few"}, "arms": {arm: [] for arm in KINDS}}
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    first = {
        "command": "the first command",
        "git_commit": "c0ffee",
        "started": "2026-11-01T10:00:00+00:00",
        "cpu": "one",
    }
    write_ceilings(about, runs_of(tmp_path / "runs"), before, first)
    anew = made(tmp_path / "anew", "oar_p", 1, {0: 0.3, 10: 0.91})
    share = [made(tmp_path / "share", arm, 1, {0: 0.3, 10: 0.5, 20: 0.95}) for arm in ("grpo", "oar_gn")]
    runs = [*(replace(run, condition="share") for run in reversed(share)), anew]
    more = about | {"conditions": {"share": ["b"]}, "arms": {"grpo": [], "oar_p": [], "oar_gn": []}, "expected": {}}
    more |= {
        "kinds": {"grpo": "method", "oar_p": "method", "oar_gn": "method"},
        "in_words": {"share": "words"},
        "beside": [str(before)],
    }
    text = write_ceilings(more, runs, after, first | {"command": "the second", "cpu": ["one", "another"]}).read_text()
    assert "one, 2026-11-01, c0ffee\nthe first command\n" in text
    assert "several processors" in text
    assert "| `oar_p` | method | 0.001 * | 20 [10, 20] |" in text  # seed 1 anew, seeds 2 and 3 as they were
    assert "| one | a few | 3 | 30 [30, 30] | `oar_p` 20 [10, 20] | `oracle_causal` 10 [10, 10] |" in text
    assert "| share | words | 1 | 20 [20, 20] | `oar_gn` 20 [20, 20] | not run |" in text
    assert "17 runs" in text
    # Conditions as the pages have them, methods before controls and oracles: not in the order in which runs were made.
    assert text.index("## one") < text.index("| `oracle_causal` |") < text.index("## share")
    assert text.index("| `grpo` |", text.index("## share")) < text.index("| `oar_gn` |", text.index("## share"))
    assert list(committed_regimes(after)) == ["one", "share"]
    assert json.loads((after / "provenance.json").read_text())["study"]["conditions"] == {"one": ["a"], "share": ["b"]}
    # Runs of a condition with other settings are not comparable: they do not stay.
    now = more | {"conditions": {"share": ["c"]}, "beside": [str(after)]}
    write_ceilings(now, [replace(share[0], condition="share")], after, {"command": "the third", "cpu": "one"})
    costs = pd.read_csv(after / "steps.csv")
    assert costs[costs["condition"] == "share"]["arm"].tolist() == ["grpo"]
    assert len(costs) == 16
    curves = pd.read_parquet(after / "curves.parquet")
    assert len(curves.drop_duplicates(["condition", "arm", "rate", "seed"])) == 16
    points = curves.set_index(["condition", "arm", "rate", "seed"]).loc[("one", "oar_p", 1e-3, 1)]
    assert points["reward"].tolist() == pytest.approx([0.3, 0.91])  # not the curve of before as well
    # Nor do runs of an arm with other settings.
    other = about | {"arms": about["arms"] | {"oar_p": ["gating.tau=0.4"]}, "beside": [str(before)]}
    write_ceilings(
        other, [made(tmp_path / "tau", "oar_p", 9, {0: 0.3, 10: 0.91})], after, {"command": "the fourth", "cpu": "one"}
    )
    costs = pd.read_csv(after / "steps.csv")
    assert costs[costs["arm"] == "oar_p"]["seed"].tolist() == [9]
    assert len(costs[costs["arm"] == "grpo"]) == 3
    # Of a seed of a condition all runs that say so began with the same weights.
    here, there = (replace(anew, provenance={**anew.provenance, "start_weights": text}) for text in "ab")
    write_ceilings(about, [here], before, first)
    write_ceilings(
        about | {"beside": [str(before)]}, [there], after, first
    )  # the same run anew: the one of before goes
    with pytest.raises(DataError, match="Runs of one under seed 1 must begin with the same weights"):
        write_ceilings(about | {"beside": [str(before)]}, [replace(there, arm="oar_gn")], after, first)
    with pytest.raises(DataError, match=r"has no steps\.csv"):
        write_ceilings(more | {"beside": [str(tmp_path)]}, runs, after, {"command": "x"})
