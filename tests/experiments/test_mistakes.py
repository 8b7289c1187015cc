"""What runs get wrong: shares by hand, a page of them, and what is refused."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.study.mistakes import RIGHT, WRITTEN_OUT, mistakes_shares, mistakes_table
from experiments.study.page import write_results
from oar.common.errors import DataError
from oar.runs.folder import Run, read_run
from oar.tasks.words import evaluation_set, tier_named
from oar.tasks.words.generator import write_solution
from tests.experiments.made_runs import make_run, toy_study


def run_that_says(folder: Path, arm: str, seed: int, said: dict[str, str]) -> Run:
    """Two problems of two tiers, avg@2; `said` is what a tier's completions are: right, short, wrong or no result."""
    scores = {tier: [float(how == "right")] * 2 for tier, how in said.items()}
    run = make_run(folder, arm, seed, scores, k=2)
    samples = pd.read_parquet(run / "samples.parquet")
    for tier, how in said.items():
        for number, each in enumerate(evaluation_set(tier_named(tier), "final", 2)):
            shown = write_solution(each.start, each.operations).removesuffix(" .")
            right = each.problem.answer
            completion = {
                "right": f"{shown} . #### {right}",
                "short": f"{each.start} . #### {each.start + 1000}",
                "wrong": f"{shown} . #### {right}0",
                "no result": f"{shown.rpartition(' =')[0]} . #### {right}0",
            }[how]
            rows = (samples["benchmark"] == tier) & (samples["problem_id"] == f"p{number:05}")
            samples.loc[rows, ["problem_id", "gold", "completion"]] = [each.problem.id, right, completion]
    samples.to_parquet(run / "samples.parquet", index=False)
    return read_run(run, arm=arm, condition="default")


def test_shares_by_hand(tmp_path: Path) -> None:
    runs = [
        run_that_says(tmp_path, "grpo", 1, {"words1": "right", "words2": "wrong"}),
        run_that_says(tmp_path, "oar_g", 1, {"words1": "short", "words2": "no result"}),
    ]
    table = mistakes_table(runs)
    shares = {(row.arm, row.kind): row.share for row in table.itertuples()}
    assert shares == {
        ("grpo", RIGHT): 50,
        ("grpo", "misreported"): 50,
        ("grpo", WRITTEN_OUT): 100,
        ("oar_g", "left out"): 50,
        ("oar_g", "no result"): 50,
        ("oar_g", WRITTEN_OUT): 50,
    }
    lines = [" | ".join(line) for line in mistakes_shares(table)]
    assert "default | `grpo` | 50.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 50.0 | 100.0" in lines
    assert "default | `oar_g` | 0.0 | 50.0 | 0.0 | 0.0 | 0.0 | 50.0 | 0.0 | 0.0 | 50.0" in lines


def test_a_seed_without_a_kind_counts_as_none_of_it(tmp_path: Path) -> None:
    runs = [run_that_says(tmp_path, "grpo", seed, {"words1": how}) for seed, how in [(1, "right"), (2, "short")]]
    assert mistakes_shares(mistakes_table(runs))[0][:4] == ["default", "`grpo`", "50.0 ± 50.0", "50.0 ± 50.0"]


def test_a_page_tells_them(tmp_path: Path) -> None:
    runs = [run_that_says(tmp_path / "runs", arm, 1, {"words1": "right"}) for arm in ("grpo", "oar_g")]
    text = write_results(toy_study(mistakes=True), runs, tmp_path / "toy", {"command": "x"}).read_text()
    assert "## What goes wrong?" in text
    assert "](mistakes.png)" in text
    assert (tmp_path / "toy" / "mistakes.png").read_bytes().startswith(b"\x89PNG")
    assert set(pd.read_csv(tmp_path / "toy" / "mistakes.csv")["kind"]) == {RIGHT, WRITTEN_OUT}


def test_what_cannot_be_judged_is_refused(tmp_path: Path) -> None:
    one = run_that_says(tmp_path / "a", "grpo", 1, {"words1": "right"})
    path = one.folder / "samples.parquet"
    samples = pd.read_parquet(path)
    samples.assign(gold="1000").to_parquet(path, index=False)
    with pytest.raises(DataError, match="words1-final-0000 is none: set mistakes=false"):
        mistakes_table([one])
    samples.assign(correct=False).to_parquet(path, index=False)
    with pytest.raises(DataError, match="calls the answer to words1-final-0000 wrong, but it is"):
        mistakes_table([one])
    with pytest.raises(DataError, match="has no samples"):
        mistakes_table([read_run(make_run(tmp_path / "b", "grpo", 1, {"words1": [1.0]}, keep_samples=False))])
