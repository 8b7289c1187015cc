"""Procedural problems: seeds that training and evaluation never share, the data set's own scores, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reasoning_gym.factory import DATASETS

from oar.common.errors import ConfigError, DataError
from oar.config import TrainConfig, build, validated
from oar.config.evaluation import Sampling
from oar.evaluation.draw import Asked, Completion
from oar.evaluation.evaluate import evaluate
from oar.learner.distributed import ALONE
from oar.rollout.types import Rollout
from oar.tasks.data.procedural import HELD_OUT, REFUSED, ReasoningGymSource
from oar.tasks.data.sources import load_benchmarks, refuse_contaminated, refuse_unreadable
from oar.tasks.problem import Problem
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer
from tests.config.test_config import composed
from tests.learner.on_ranks import config, learner_of, start_model

TASKS = ["leg_counting", "chain_sum", "spell_backward"]
TASK = Task(build_tokenizer(), "####")
SMALL_SUMS = "+data.source.options.chain_sum={max_terms: 2, max_digits: 1}"


def configured(*overrides: str) -> TrainConfig:
    return validated(composed(*overrides), TrainConfig)


def source(*overrides: str) -> ReasoningGymSource:
    built = build("data.source", configured("data=reasoning_gym", *overrides).data.source)
    assert isinstance(built, ReasoningGymSource)
    return built


def benchmark(*overrides: str, split: str = "final", n: int | None = 4) -> dict[str, Sequence[Problem]]:
    found = load_benchmarks(configured("benchmark=reasoning_gym", *overrides).benchmark, split, n)
    return {name: one.problems for name, one in found.items()}


def seeds(problems: Sequence[Problem]) -> list[int]:
    return [one.scored_as["seed"] for one in problems if one.scored_as is not None]


def only(task: str, *overrides: str) -> Problem:
    return source(f"data.source.tasks=[{task}]", *overrides).problems(1, 0, 1)[0]


def scores(problem: Problem, *answers: str) -> list[float]:
    return [verdict.score for verdict in TASK.grade_all([problem] * len(answers), [f"#### {one}" for one in answers])]


def test_the_stream_depends_on_seed_and_place_alone() -> None:
    whole = source().problems(3, 0, 12)
    assert [*source().problems(3, 3, 3), *source().problems(3, 0, 3)] == [*whole[9:], *whole[:3]]
    assert [problem.benchmark for problem in whole] == TASKS * 4
    assert len({problem.question for problem in whole}) == len({problem.id for problem in whole}) == 12
    assert source().problems(4, 0, 12) != whole


def test_training_and_held_out_sets_never_share_a_seed() -> None:
    held_out = [seeds(benchmark(split=split)[task]) for split in ("curve", "final") for task in TASKS]
    assert held_out[0] == held_out[1] != held_out[3]
    assert not set(held_out[0]) & set(held_out[3])
    assert (
        max(map(max, held_out))
        < HELD_OUT
        <= min(seeds([one for seed in range(9) for one in source().problems(seed, 0, 3)]))
    )
    with pytest.raises(ConfigError, match="at most 300,000 problems, but 300,001"):
        benchmark(n=300_001)
    assert benchmark() == benchmark()


def test_a_training_and_an_evaluation_of_the_same_tasks_are_not_refused() -> None:
    cfg = configured("data=reasoning_gym", "benchmark=reasoning_gym")
    refuse_contaminated(source(), cfg.benchmark, [])
    refuse_unreadable(load_benchmarks(cfg.benchmark, "final", 1).values())
    assert source("+data.source.options.chain_sum={max_terms: 2}").origin()["options"] == {
        "chain_sum": {"max_terms": 2}
    }


@pytest.mark.parametrize("task", TASKS)
def test_the_data_sets_own_scorer_judges(task: str) -> None:
    problem = only(task)
    assert scores(problem, problem.answer, "") == [1.0, 0.0]
    (right, wrong) = TASK.grade_all([problem] * 2, [f"#### {problem.answer}", "no answer"])
    assert (right.correct, right.answer, right.outcome) == (True, problem.answer, "plain")
    assert (wrong.correct, wrong.answer, wrong.outcome) == (False, None, "no_answer")


def test_a_part_of_the_score_is_no_right_answer() -> None:
    problem = only("leg_counting")
    said = f"{problem.answer} legs"
    (verdict,) = TASK.grade_all([problem], [f"#### {said}"])
    assert verdict.score == len(problem.answer) / len(said)
    assert not verdict.correct


def test_options_decide_on_the_problem_that_is_scored() -> None:
    problem = only("chain_sum", SMALL_SUMS)
    assert int(problem.answer) in range(-9, 19)
    assert scores(problem, problem.answer) == [1.0]
    assert problem.columns["metadata"]["difficulty"]["num_terms"] == (2, 2)


def test_other_problems_are_compared_as_ever() -> None:
    word = Problem("p", "Tom has 12 apples .", "17", "words1")
    scored = only("leg_counting")
    verdicts = TASK.grade_all([word, scored, word], ["#### 17", f"#### {scored.answer}", "#### 18"])
    assert [verdict.correct for verdict in verdicts] == [True, True, False]


def test_a_prompt_that_does_not_fit_makes_way() -> None:
    legs = source("data.source.tasks=[leg_counting]")
    everything = legs.problems(1, 0, 20)
    limit = sorted(len(problem.question) for problem in everything)[10]
    kept = legs.fitting(lambda problem: len(problem.question) < limit).problems(1, 0, 20)
    assert all(len(problem.question) < limit for problem in kept)
    assert all((old == new) == (len(old.question) < limit) for old, new in zip(everything, kept, strict=True))
    assert len({problem.id for problem in kept}) == 20
    with pytest.raises(
        DataError, match=r"20 problems of leg_counting have no prompt .*data\.source\.options\.leg_counting"
    ):
        legs.fitting(lambda problem: False).problems(1, 0, 1)


# What a model may answer


def test_answers_are_no_code(tmp_path: Path) -> None:
    mark = tmp_path / "sprung"
    attacks = [f"__import__('os').mkdir({str(mark)!r})", f"[open({str(mark)!r}, 'w')]", "().__class__"]
    for task in ("n_queens", "countdown", "string_insertion"):
        assert max(scores(only(task), *attacks)) <= 0.01
    assert not mark.exists()
    countdown = only("countdown")
    assert scores(countdown, countdown.columns["metadata"]["expression"]) == [1.0]


def test_an_answer_that_hangs_or_breaks_the_scorer_costs_itself() -> None:
    countdown, factors = only("countdown"), only("prime_factorization")
    texts = [f"#### {said}" for said in ("9**9**9**9", countdown.columns["metadata"]["expression"])]
    hangs, right = TASK.grade_all([countdown] * 2, texts)
    assert (hangs.correct, hangs.score, hangs.outcome) == (False, 0.0, "timeout")
    assert right.correct
    assert TASK.grade_all([factors], ["#### none"])[0].outcome == "crash"
    assert scores(factors, factors.answer) == [1.0]


# What is refused


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["data.source.tasks=[leg_count]"],
            "data.source.tasks must name tasks of reasoning-gym, but names 'leg_count'; did you mean leg_counting?",
        ),
        (["data.source.tasks=[zzz]"], "names 'zzz': all are at"),
        (["data.source.tasks=[]"], "at least one task"),
        (
            ["data.source.tasks=[word_ladder]"],
            "must not name word_ladder, since it draws other problems in every process",
        ),
        (["data.source.tasks=[simple_integration]"], "since its scorer runs an answer as Python code"),
        (
            ["+data.source.options.leg_counting.legs=3"],
            "The options of leg_counting must be those of reasoning-gym, but: .*'legs'",
        ),
        (["+data.source.options.leg_counting.max_animals=0"], "The options of leg_counting .*max_animals must be"),
        (["+data.source.options.leg_counting.seed=3"], "The options of leg_counting .*'seed'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        source(*overrides)
    assert "\n" not in str(caught.value)


def test_a_benchmark_is_refused_alike() -> None:
    with pytest.raises(ConfigError, match=r"benchmark\.sets must name tasks .*'chain_sums'; did you mean chain_sum\?"):
        benchmark("benchmark.sets=[chain_sums]")
    with pytest.raises(ConfigError, match=r"leg_counting is generated and has no end: set evaluation\.final_problems"):
        benchmark(n=None)
    assert set(REFUSED) <= set(DATASETS)


# In a run


def test_a_step_learns_from_fractions(tmp_path: Path) -> None:
    class Engine:
        def generate(
            self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int, expected_version: int
        ) -> list[list[Rollout]]:
            problems = learner.source.problems(cfg.seed, expected_version, len(prompts))
            return [
                [self.rollout(prompt, text) for text in self.texts(problem)]
                for prompt, problem in zip(prompts, problems, strict=True)
            ]

        def texts(self, problem: Problem) -> list[str]:
            return [f"So #### {said}" for said in (problem.answer, f"{problem.answer} {problem.answer}", "none")] + [
                "So"
            ]

        def rollout(self, prompt: Sequence[int], text: str) -> Rollout:
            ids = learner.task.tokenizer.encode(text, add_special_tokens=False)
            return Rollout(tuple(prompt), tuple(ids), (-1.0,) * len(ids), 0, "stop")

    cfg = config("data=reasoning_gym", "data.source.tasks=[chain_sum]", SMALL_SUMS)
    learner: Any = learner_of(cfg, start_model(tmp_path), ALONE)
    object.__setattr__(learner.groups.sampler, "client", Engine())
    report = learner.training_step()
    (whole, part, none, silent) = report.graded.rewards[:4].tolist()
    assert (whole, none, silent) == (1.0, 0.0, 0.0)
    assert 0 < part < 1
    assert (
        report.metrics["train/accuracy"]
        == 0.25
        < report.metrics["train/reward_mean"]
        == pytest.approx(report.metrics["reward/answer"])
    )
    assert report.advantages[1] != report.advantages[2]


def test_the_mean_score_stands_beside_the_accuracy() -> None:
    def draw(asked: Sequence[Asked]) -> list[list[list[Completion]]]:
        (one,) = asked
        texts = ["#### {}", "#### {} legs"]
        return [[[Completion(of.question, text.format(of.answer), 3, "stop") for text in texts] for of in one.problems]]

    sets = {"leg_counting": benchmark()["leg_counting"]}
    sampling = {"leg_counting": Sampling(n=2, temperature=1.0, max_new_tokens=8)}
    found = evaluate(draw, sets, task=TASK, sampling=sampling, seed=1).metrics()
    assert found["eval/leg_counting/avg@2"] == 50.0
    parts = [len(one.answer) / len(f"{one.answer} legs") for one in sets["leg_counting"]]
    assert found["eval/leg_counting/reward@2"] == pytest.approx((1 + sum(parts) / len(parts)) / 2)
