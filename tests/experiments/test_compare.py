"""Paired differences of two evaluations, and all that makes two evaluations no pair."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.compare import compare
from oar.common.errors import DataError
from oar.evaluation.graded import read_evaluation

ORIGIN = {"file": "toy.jsonl", "sha256": "abc", "rows": 4}


def rows(
    correct: list[list[int]], benchmark: str = "toy", metric: str = "avg@k", temperature: float = 1.0
) -> pd.DataFrame:
    """Verdicts by problem and sample."""
    return pd.DataFrame(
        {
            "benchmark": benchmark,
            "problem_id": f"p{at}",
            "sample": sample,
            "metric": metric,
            "k": len(verdicts),
            "temperature": temperature,
            "gold": str(at),
            "correct": bool(verdict),
        }
        for at, verdicts in enumerate(correct)
        for sample, verdict in enumerate(verdicts)
    )


def saved(folder: Path, samples: pd.DataFrame, data: object = None, results: Sequence[object] = ()) -> Path:
    folder.mkdir()
    samples.to_parquet(folder / "samples.parquet", index=False)
    record = {"results": results, "provenance": {"data": {"toy": ORIGIN, "toy2": {}} if data is None else data}}
    (folder / "evaluation.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]:
    def of(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
        return compare(read_evaluation(saved(tmp_path / "a", a)), read_evaluation(saved(tmp_path / "b", b))).set_index(
            ["benchmark", "metric"]
        )

    return of


def test_by_hand(table: Callable[..., pd.DataFrame]) -> None:
    a = pd.concat([rows([[1, 1], [1, 0], [0, 0], [1, 1]]), rows([[1], [0]], "toy2", temperature=0.6)])
    b = pd.concat([rows([[1, 1], [0, 0], [1, 0], [0, 0]]), rows([[0], [0]], "toy2", temperature=0.6)])
    # Order is no part of the pairing.
    found = table(a, b.sample(frac=1, random_state=0))
    toy, toy2, mean = found.loc["toy", "avg@k"], found.loc["toy2", "avg@k"], found.loc["mean", "avg@k"]
    assert (toy["a"], toy["b"], toy["difference"]) == pytest.approx((62.5, 37.5, 25.0))
    assert (toy["n"], toy["better"], toy["worse"], toy["k"]) == (4, 2, 1, 2)
    assert (toy2["a"], toy2["b"], toy2["difference"]) == pytest.approx((50.0, 0.0, 50.0))
    assert (mean["a"], mean["b"], mean["difference"]) == pytest.approx((56.25, 18.75, 37.5))
    assert (mean["n"], mean["better"], mean["worse"]) == (6, 3, 1)
    assert pd.isna(mean["k"])
    assert -50.0 <= toy["ci_low"] <= 25.0 <= toy["ci_high"] <= 100.0


def test_pairing_takes_out_what_is_hard_for_both(table: Callable[..., pd.DataFrame]) -> None:
    """Half of 100 problems are solved by both; a solves five more. Unpaired, the interval would be four times as wide."""
    solved = np.arange(100) < 50
    more = solved | (np.arange(100) >= 95)
    found = table(rows([[int(one)] for one in more]), rows([[int(one)] for one in solved])).loc["toy", "avg@k"]
    assert found["difference"] == pytest.approx(5.0)
    half = (found["ci_high"] - found["ci_low"]) / 2
    assert half == pytest.approx(1.96 * 100 * (0.05 * 0.95 / 100) ** 0.5, rel=0.2)
    assert found["ci_low"] > 0


def test_swapped_signs(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", rows([[1], [1], [0], [1]])), saved(tmp_path / "b", rows([[0], [1], [1], [0]]))
    one = compare(read_evaluation(a), read_evaluation(b)).iloc[0]
    other = compare(read_evaluation(b), read_evaluation(a)).iloc[0]
    assert (one["difference"], one["better"], one["worse"]) == (-other["difference"], other["worse"], other["better"])
    assert (one["ci_low"], one["ci_high"]) == pytest.approx((-other["ci_high"], -other["ci_low"]))


def test_greedy_and_sampled_stand_apart(table: Callable[..., pd.DataFrame]) -> None:
    a = pd.concat([rows([[1, 0]]), rows([[1]], metric="pass@1", temperature=0.0)])
    b = pd.concat([rows([[0, 0]]), rows([[1]], metric="pass@1", temperature=0.0)])
    assert table(a, b)["difference"].to_dict() == {
        ("toy", "avg@k"): 50.0,
        ("mean", "avg@k"): 50.0,
        ("toy", "pass@1"): 0.0,
        ("mean", "pass@1"): 0.0,
    }


BASE = rows([[1, 0], [0, 0]])


@pytest.mark.parametrize(
    ("other", "data", "said"),
    [
        (rows([[1, 0], [0, 0], [1, 1]]), None, "only one of them has problem 'p2' of toy"),
        (rows([[1, 0, 1], [0, 0, 1]]), None, r"\('toy', 'avg@k', 2, 1.0\)"),
        (rows([[1, 0], [0, 0]], temperature=0.6), None, "only one of them has .*temperature"),
        (rows([[1, 0], [0, 0]], "toy2"), None, r"only one of them has .*toy"),
        (BASE.assign(gold="7"), None, "problem 'p0' of toy has other gold answers"),
        (BASE, {"toy": ORIGIN | {"sha256": "other"}}, "toy comes from other data"),
        (BASE.iloc[:-1], None, "must hold 2 samples of each problem of toy, but has 3 of 2"),
        (
            BASE.assign(problem_id=["p0", "p1", "p1", "p1"], sample=[0, 2, 0, 1], gold=["0", "1", "1", "1"]),
            None,
            "but has 4 of 2",  # the total is right
        ),
        (pd.concat([BASE, BASE]), None, "must hold 2 samples of each problem of toy, but has 8 of 2"),
    ],
)
def test_what_is_no_pair(other: pd.DataFrame, data: object, said: str, tmp_path: Path) -> None:
    a, b = read_evaluation(saved(tmp_path / "a", BASE)), read_evaluation(saved(tmp_path / "b", other, data))
    for pair in ((a, b), (b, a)):
        with pytest.raises(DataError, match=said) as caught:
            compare(*pair)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", ["top_p", "max_new_tokens"])
def test_samples_that_were_cut_otherwise_are_no_pair(limit: str, tmp_path: Path) -> None:
    row = {"benchmark": "toy", "metric": "avg@k", "top_p": 1.0, "max_new_tokens": 160}
    a = read_evaluation(saved(tmp_path / "a", BASE, results=[row]))
    b = read_evaluation(saved(tmp_path / "b", BASE, results=[row | {limit: 0.95}]))
    earlier = read_evaluation(saved(tmp_path / "earlier", BASE, results=[{"benchmark": "toy", "metric": "avg@k"}]))
    with pytest.raises(DataError, match=f"avg@k of toy has another {limit}"):
        compare(a, b)
    assert compare(a, a)["difference"].tolist() == compare(a, earlier)["difference"].tolist() == [0.0, 0.0]


def test_the_same_file_under_another_name_is_the_same_data(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", BASE), saved(tmp_path / "b", BASE, {"toy": ORIGIN | {"file": "copy.jsonl"}})
    assert compare(read_evaluation(a), read_evaluation(b))["difference"].tolist() == [0.0, 0.0]


def test_folders_without_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere must hold a finished evaluation, but has no samples.parquet"):
        read_evaluation(tmp_path / "nowhere")
    folder = saved(tmp_path / "a", BASE)
    (folder / "evaluation.json").unlink()
    with pytest.raises(DataError, match=r"has no evaluation.json"):
        read_evaluation(folder)
    (folder / "evaluation.json").write_text("{}")
    with pytest.raises(DataError, match="must hold an evaluation of this version"):
        read_evaluation(folder)
    broken = saved(tmp_path / "b", BASE.drop(columns="gold"))
    with pytest.raises(DataError, match="gold"):
        read_evaluation(broken)
    (broken / "samples.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match="must hold an evaluation"):
        read_evaluation(broken)
