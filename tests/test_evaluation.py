import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from oar.errors import ConfigError, DataError, OarError
from oar.evaluation import EvaluationResult, concatenate, evaluate
from oar.rollout.types import Rollout, Sampling
from oar.tasks.problem import Problem

GREEDY = Sampling(n=1, temperature=0.0, max_new_tokens=8)
SAMPLED = Sampling(n=2, temperature=1.0, max_new_tokens=8)

# A toy language: a prompt is the ids of the question's letters, a completion is text as code points.
PROBLEMS = {
    "words1": [Problem(id=str(i), question=f"q{i}", answer=str(i), benchmark="words1") for i in range(4)],
    "words2": [Problem(id=str(i), question=f"r{i}", answer=str(i), benchmark="words2") for i in range(2)],
}


def encode(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


class Toy:
    def encode_prompt(self, problem: Problem) -> list[int]:
        return list(encode(problem.question))

    def decode(self, ids: Sequence[int]) -> str:
        return decode(ids)

    def parse(self, completion: str) -> str | None:
        return completion.partition("#")[2] or None

    def grade(self, problem: Problem, completion: str) -> bool:
        return self.parse(completion) == problem.answer


def rollout(prompt: Sequence[int], text: str, reason: str = "stop") -> Rollout:
    return Rollout(tuple(prompt), encode(text), (0.0,) * len(text), 0, reason)


class Policy:
    """Answers by a rule of its own: the first draw says 0, the second is cut off without an answer."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int
    ) -> Sequence[Sequence[Rollout]]:
        self.seeds.append(seed)
        drawn = [("think#0", "stop"), ("thinking", "length")]
        return [[rollout(prompt, *drawn[index]) for index in range(sampling.n)] for prompt in prompts]


def run(generate: object, sampling: Sampling, problems: dict[str, list[Problem]] = PROBLEMS) -> EvaluationResult:
    return evaluate(
        generate,  # type: ignore[arg-type]
        problems,
        task=Toy(),
        sampling=sampling,
        seed=7,
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


def test_benchmarks_have_seeds_of_their_own_that_repeat() -> None:
    first, again = Policy(), Policy()
    run(first, SAMPLED)
    run(again, SAMPLED)
    assert first.seeds == again.seeds
    assert len(set(first.seeds)) == 2


def lose_a_sample(prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int) -> Sequence[Sequence[Rollout]]:
    groups = [list(group) for group in Policy()(prompts, sampling, seed=seed)]
    groups[1].pop()
    return groups


def move_a_sample(prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int) -> Sequence[Sequence[Rollout]]:
    groups = [list(group) for group in Policy()(prompts, sampling, seed=seed)]
    groups[0].append(groups[1].pop())  # the total is right
    return groups


def lose_a_problem(prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int) -> Sequence[Sequence[Rollout]]:
    return Policy()(prompts, sampling, seed=seed)[:-1]


@pytest.mark.parametrize("generate", [lose_a_sample, move_a_sample, lose_a_problem])
def test_a_missing_sample_is_never_a_wrong_answer(generate: object) -> None:
    with pytest.raises(DataError, match=r"words1 needs 4 problems x 2 samples = 8 completions"):
        run(generate, SAMPLED)


def test_completions_of_another_prompt_are_refused() -> None:
    def reversed_order(prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int) -> list[list[Rollout]]:
        return [list(group) for group in reversed(Policy()(prompts, sampling, seed=seed))]

    with pytest.raises(DataError, match="position 0 belong to another prompt"):
        run(reversed_order, SAMPLED)


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
