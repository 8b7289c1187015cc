import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oar.common.errors import ConfigError, DataError, OarError
from oar.config.evaluation import Sampling
from oar.evaluation.draw import Asked, Completion
from oar.evaluation.evaluate import EvaluationResult, concatenate, evaluate
from oar.evaluation.graded import read_evaluation
from oar.evaluation.pass_at_k import Group
from oar.statistics.accuracy import accuracy
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import ANSWER, RewardTerms
from oar.tasks.verifier.grade import Verdict

GREEDY = Sampling(n=1, temperature=0.0, max_new_tokens=8)
SAMPLED = Sampling(n=2, temperature=1.0, max_new_tokens=8)
SAMPLED_4 = Sampling(n=4, temperature=1.0, max_new_tokens=8)

PROBLEMS = {
    "words1": [Problem(id=str(i), question=f"q{i}", answer=str(i), benchmark="words1") for i in range(4)],
    "words2": [Problem(id=str(i), question=f"r{i}", answer=str(i), benchmark="words2") for i in range(2)],
}


class Toy:
    """Grades what stands behind #; the gold answer of a problem is its number."""

    def grade_all(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        answers = [completion.partition("#")[2] or None for completion in completions]
        return [
            Verdict(answer == problem.answer, answer, "plain" if answer else "no_answer")
            for problem, answer in zip(problems, answers, strict=True)
        ]

    def parsed(self, answer: str) -> str:
        return f"read {answer}"


class Policy:
    """Answers by a rule of its own: the first draw says 0, the second is cut off without an answer."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, asked: Sequence[Asked]) -> list[list[list[Completion]]]:
        self.seeds += [one.seed for one in asked]
        drawn = [("think#0", "stop"), ("thinking", "length")]
        return [
            [
                [Completion(problem.question, text, len(text), reason) for text, reason in drawn[: one.sampling.n]]
                for problem in one.problems
            ]
            for one in asked
        ]


class Scripted:
    """Says the answers it is given, the same for every problem."""

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers = answers

    def __call__(self, asked: Sequence[Asked]) -> list[list[list[Completion]]]:
        return [
            [[Completion("", f"#{said}", 2, "stop") for said in self.answers[of.benchmark]] for of in one.problems]
            for one in asked
        ]


def run(
    draw: object,
    sampling: Sampling | dict[str, Sampling],
    problems: dict[str, list[Problem]] = PROBLEMS,
    group: Group | None = None,
    reward: RewardTerms = ANSWER,
) -> EvaluationResult:
    return evaluate(
        draw,  # type: ignore[arg-type]
        problems,
        task=Toy(),
        sampling=dict.fromkeys(problems, sampling) if isinstance(sampling, Sampling) else sampling,
        seed=7,
        group=group,
        reward=reward,
    )


def test_avg_at_k_by_hand() -> None:
    result = run(Policy(), SAMPLED)
    rows = result.summary.set_index("benchmark")
    assert list(rows.index) == ["words1", "words2", "mean"]
    # One of 4 problems and one of 2 has answer 0, half of its samples say so.
    assert rows["value"].tolist() == pytest.approx([12.5, 25.0, 18.75])
    assert rows["n"].tolist() == [4, 2, 6]
    assert rows["samples"].tolist() == [8, 4, 12]
    assert set(rows["metric"]) == {"avg@k"}
    assert set(rows["k"]) == {2}
    assert set(rows["temperature"]) == {1.0}
    assert rows["truncated_share"].tolist() == [0.5, 0.5, 0.5]
    assert rows["mean_completion_tokens"].tolist() == [7.5, 7.5, 7.5]
    assert (rows["ci_low"] <= rows["value"]).all()
    assert (rows["value"] <= rows["ci_high"]).all()
    # Resampled over 4 problems of which one scores 50: at most all four are that one.
    assert rows["ci_high"].tolist()[0] <= 50.0
    assert result.metrics() == {"eval/words1/avg@2": 12.5, "eval/words2/avg@2": 25.0, "eval/mean/avg@2": 18.75}


def test_an_interval_does_not_hang_on_the_order_of_problems() -> None:
    turned = {name: problems[::-1] for name, problems in PROBLEMS.items()}
    pd.testing.assert_frame_equal(run(Policy(), SAMPLED, turned).summary, run(Policy(), SAMPLED).summary)


def test_the_mean_is_over_all_benchmarks() -> None:
    samplings = {"words1": SAMPLED, "words2": replace(SAMPLED, n=1)}  # of one draw nothing is cut off
    mean = run(Policy(), samplings).summary.set_index("benchmark").loc["mean"]
    scores = {"words1": [50.0, 0.0, 0.0, 0.0], "words2": [100.0, 0.0]}
    whole = accuracy({name: np.array([[of]]) for name, of in scores.items()}, by_problem=True).first()
    assert mean[["value", "ci_low", "ci_high"]].tolist() == [31.25, whole.low, whole.high]
    assert mean[["truncated_share", "mean_completion_tokens"]].tolist() == [0.25, 7.25]


def test_the_overview_has_a_column_for_each_metric() -> None:
    first, *rows = concatenate([run(Policy(), SAMPLED), run(Policy(), GREEDY)]).overview().splitlines()
    assert first.split() == ["avg@k", "pass@1"]
    assert [row.split()[:2] for row in rows] == [["words1", "12.5"], ["words2", "25.0"], ["mean", "18.8"]]
    assert all(row.count("[") == 2 for row in rows)


def test_a_value_without_an_interval_stands_alone() -> None:
    result = run(Policy(), SAMPLED)
    bare = replace(result, summary=result.summary.assign(ci_low=float("nan"), ci_high=float("nan")))
    assert [row.split() for row in bare.overview().splitlines()[1:]] == [
        ["words1", "12.5"],
        ["words2", "25.0"],
        ["mean", "18.8"],
    ]


def test_greedy_is_pass_at_1() -> None:
    result = run(Policy(), GREEDY)
    assert result.metrics() == {"eval/words1/pass@1": 25.0, "eval/words2/pass@1": 50.0, "eval/mean/pass@1": 37.5}


def test_every_sample_is_kept_as_it_was_graded() -> None:
    samples = run(Policy(), SAMPLED).samples
    assert len(samples) == 12
    first, second = samples.iloc[0], samples.iloc[1]
    assert (first["benchmark"], first["problem_id"], first["sample"], first["prompt"]) == ("words1", "0", 0, "q0")
    assert (first["completion"], first["gold"], first["answer"]) == ("think#0", "0", "0")
    assert first["correct"]
    assert first["finish_reason"] == "stop"
    assert (second["sample"], second["finish_reason"], pd.isna(second["answer"])) == (1, "length", True)
    assert not second["correct"]
    assert samples["correct"].sum() == 2


def test_a_reward_of_ones_own_stands_beside_the_accuracy(tmp_path: Path) -> None:
    def short(completions: Sequence[str], truncated: Sequence[bool], **columns: object) -> list[float]:
        return [-3.0 if cut else 1.0 / len(text) for text, cut in zip(completions, truncated, strict=True)]

    reward = RewardTerms({"short": short}, {"short": 2.0})
    result = concatenate([run(Policy(), sampling, reward=reward) for sampling in (SAMPLED, GREEDY)])
    plain = run(Policy(), SAMPLED).metrics() | run(Policy(), GREEDY).metrics()
    found = result.metrics()
    assert {name: value for name, value in found.items() if "reward" not in name} == plain
    assert found["eval/words1/reward@2"] == pytest.approx((2 / 7 - 6) / 2)
    assert found["eval/mean/reward"] == pytest.approx(2 / 7)
    assert result.samples["reward"].tolist()[:2] == pytest.approx([2 / 7, -6.0])
    assert (
        result.summary.set_index("metric").loc["reward@k", "ci_low"].isna().all()
    )  # an accuracy's interval is not its own
    assert "-2.857" in result.table()
    result.save(tmp_path, {})
    assert None in {row["ci_low"] for row in json.loads((tmp_path / "evaluation.json").read_text())["results"]}


def test_benchmarks_have_seeds_of_their_own_that_repeat() -> None:
    rewarded: list[int] = []

    def remember(completions: Sequence[str], seed: int, **columns: object) -> list[float]:
        rewarded.append(seed)
        return [0.0] * len(completions)

    first, again, reward = Policy(), Policy(), RewardTerms({"remember": remember}, {"remember": 1.0})
    run(first, SAMPLED, reward=reward)
    run(again, SAMPLED, reward=reward)
    assert first.seeds == again.seeds
    assert rewarded[:2] == rewarded[2:]
    assert len({*first.seeds, *rewarded}) == 4


def lose_a_sample(asked: Sequence[Asked]) -> list[list[list[Completion]]]:
    drawn = Policy()(asked)
    drawn[0][1].pop()
    return drawn


def move_a_sample(asked: Sequence[Asked]) -> list[list[list[Completion]]]:
    drawn = Policy()(asked)
    drawn[0][0].append(drawn[0][1].pop())  # the total is right
    return drawn


def lose_a_problem(asked: Sequence[Asked]) -> list[list[list[Completion]]]:
    drawn = Policy()(asked)
    drawn[0].pop()
    return drawn


@pytest.mark.parametrize("draw", [lose_a_sample, move_a_sample, lose_a_problem])
def test_a_missing_sample_is_never_a_wrong_answer(draw: object) -> None:
    with pytest.raises(DataError, match=r"words1 needs 4 problems x 2 samples = 8 completions"):
        run(draw, SAMPLED)


def test_pass_at_k_and_majority_by_hand() -> None:
    """Four samples say 0, 0, 1, 2: of words1 (answers 0 to 3) three problems are solved, of words2 (0, 1) both."""
    result = run(Scripted(words1="0012", words2="0012"), SAMPLED_4, group=tuple)
    table = result.summary.set_index(["benchmark", "metric", "k"])["value"]
    assert table["words1"].to_dict() == pytest.approx(
        {
            ("avg@k", 4): (50 + 25 + 25 + 0) / 4,
            ("pass@k", 2): 100 * (5 / 6 + 1 / 2 + 1 / 2 + 0) / 4,
            ("pass@k", 4): 75.0,
            ("maj@k", 4): 25.0,
        }
    )
    assert table["mean", "maj@k", 4] == pytest.approx((25 + 50) / 2)
    assert result.metrics()["eval/words2/pass@2"] == pytest.approx(100 * (5 / 6 + 1 / 2) / 2)
    assert result.metrics()["eval/words2/maj@4"] == pytest.approx(50.0)
    assert set(result.summary["samples"]) == {16, 8, 24}
    plain = run(Scripted(words1="0012", words2="0012"), SAMPLED_4)
    pd.testing.assert_frame_equal(result.summary[result.summary["metric"] == "avg@k"], plain.summary)


def test_answers_that_are_the_same_vote_together() -> None:
    def last_digit(answers: Sequence[str]) -> list[str]:
        return [answer[-1] for answer in answers]

    one = {"words1": PROBLEMS["words1"][:1]}
    split = run(Scripted(words1=["0", "10", "1", "1", "1"]), replace(SAMPLED, n=5), one, tuple)
    joint = run(Scripted(words1=["0", "10", "20", "1", "1"]), replace(SAMPLED, n=5), one, last_digit)
    assert split.metrics()["eval/words1/maj@5"] == 0.0
    # 0, 10 and 20 are called the same, and one of the three was graded right.
    assert joint.metrics()["eval/words1/maj@5"] == pytest.approx(100 / 3)
    # One without an answer has no vote, and takes nobody's.
    unsaid = run(Scripted(words1=["", "1", "0", "0"]), SAMPLED_4, one, tuple)
    assert unsaid.metrics()["eval/words1/maj@4"] == 100.0


def test_each_benchmark_has_the_k_of_its_own_samples() -> None:
    """All of them and powers of two, whatever others have; one sample has neither a smaller k nor a majority."""
    sampling = {"words1": replace(SAMPLED, n=3), "words2": SAMPLED_4}
    rows = run(Scripted(words1="012", words2="0012"), sampling, group=tuple).summary
    shown = rows[rows["metric"] == "pass@k"].groupby("benchmark")["k"].agg(list).to_dict()
    assert shown == {"words1": [2, 3], "words2": [2, 4], "mean": [2]}
    single = run(Scripted(words1="0", words2="0"), replace(SAMPLED, n=1), group=tuple)
    assert set(single.summary["metric"]) == {"avg@k"}


def test_benchmarks_of_different_k(tmp_path: Path) -> None:
    sampling = {"words1": SAMPLED, "words2": replace(SAMPLED_4, temperature=0.25, top_p=0.9)}
    result = run(Scripted(words1="01", words2="0012"), sampling, group=tuple)
    mean = result.summary[result.summary["benchmark"] == "mean"].set_index("metric")
    # pass@4 is known of one benchmark alone: there is no mean of it.
    assert list(zip(mean.index, mean["k"].fillna(0), strict=True)) == [("avg@k", 0), ("pass@k", 2), ("maj@k", 0)]
    assert mean[["temperature", "top_p"]].isna().all(axis=None)
    assert set(mean["max_new_tokens"]) == {SAMPLED.max_new_tokens}
    metrics = result.metrics()
    assert metrics["eval/words2/pass@4"] == 100.0
    assert "eval/words1/pass@4" not in metrics
    assert metrics["eval/mean/avg@k"] == pytest.approx(
        (metrics["eval/words1/avg@2"] + metrics["eval/words2/avg@4"]) / 2
    )
    assert result.samples.groupby("benchmark")["k"].unique().map(list).to_dict() == {"words1": [2], "words2": [4]}
    assert "NA" not in result.table()
    assert " 0.25 " in result.table()  # what was set is not rounded
    result.save(tmp_path, {"data": {}})
    assert read_evaluation(tmp_path).limits["words2", "avg@k"] == {
        "top_p": 0.9,
        "max_new_tokens": SAMPLED.max_new_tokens,
    }
    (row,) = [row for row in json.loads((tmp_path / "evaluation.json").read_text())["results"] if row["k"] is None][:1]
    assert (row["benchmark"], row["temperature"]) == ("mean", None)
    assert "mean,avg@k,,," in (tmp_path / "evaluation.csv").read_text()
    assert "words1,avg@k,2,1.0," in (tmp_path / "evaluation.csv").read_text()


def test_greedy_on_some_benchmarks_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="greedy on every benchmark or on none"):
        run(Policy(), {"words1": SAMPLED, "words2": GREEDY})


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ({}, "at least one benchmark"),
        ({"words1": []}, "has no problems"),
        ({"words1": PROBLEMS["words1"][:1] * 2}, "'0' more than once"),
        ({"mean": PROBLEMS["words1"]}, "may be called 'mean'"),
    ],
)
def test_problem_sets_that_cannot_be_scored(problems: dict[str, list[Problem]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(Policy(), SAMPLED, problems)


@pytest.mark.parametrize(("n", "temperature"), [(4, 0.0), (0, 1.0), (1, -1.0)])
def test_samplings_that_make_no_sense(n: int, temperature: float) -> None:
    with pytest.raises(ConfigError):
        run(Policy(), Sampling(n=n, temperature=temperature, max_new_tokens=8))


def test_saved_files_hold_both_metrics(tmp_path: Path) -> None:
    result = concatenate([run(Policy(), GREEDY), run(Policy(), SAMPLED)])
    result.save(tmp_path, {"git_commit": None})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.csv", "evaluation.json", "samples.parquet"]
    table = pd.read_csv(tmp_path / "evaluation.csv")
    pd.testing.assert_frame_equal(table, result.summary, check_dtype=False)
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert content["provenance"] == {"git_commit": None}
    assert [row["value"] for row in content["results"]] == table["value"].tolist()
    samples = pd.read_parquet(tmp_path / "samples.parquet")
    assert samples.groupby("metric").size().to_dict() == {"avg@k": 12, "pass@1": 6}


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    result = run(Policy(), GREEDY)
    result.save(tmp_path, {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "evaluation.json").unlink()
    (tmp_path / "evaluation.json").mkdir()  # a file cannot take this name
    with pytest.raises(OarError, match=r"evaluation\.json could not be written"):
        run(Policy(), GREEDY).save(tmp_path, {})
    assert (tmp_path / "evaluation.csv").read_bytes() == before["evaluation.csv"]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
