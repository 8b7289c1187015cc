"""Benchmarks and training problems as a run asks for them: where they are read, in which order, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from oar.common.errors import ConfigError, DataError
from oar.config import TrainConfig, build, validated
from oar.tasks.data.sources import DatasetSource, WordsSource, load_benchmarks, refuse_contaminated, refuse_unreadable
from oar.tasks.problem import Problem, ProblemSet
from tests.config.test_config import composed

PUBLIC = Path(__file__).parents[1] / "data" / "public"
SUITE = ["gsm8k", "math500", "aime24", "aime25", "amc23"]


def configured(*overrides: str) -> TrainConfig:
    return validated(composed(*overrides), TrainConfig)


def source(*overrides: str) -> DatasetSource:
    cfg = configured("data=math", f"data.source.path={PUBLIC}", "data.source.levels=null", *overrides)
    built = build("data.source", cfg.data.source)
    assert isinstance(built, DatasetSource)
    return built


def test_the_suite_is_the_five_benchmarks_from_a_folder() -> None:
    found = load_benchmarks(configured("benchmark=paper_suite", f"benchmark.path={PUBLIC}").benchmark, "final", 100)
    assert {name: len(one.problems) for name, one in found.items()} == dict(zip(SUITE, (3, 2, 2, 2, 2), strict=True))
    assert list(found) == SUITE
    assert found["aime24"].origin["file"] == "aime24.jsonl"
    assert len(str(found["aime24"].origin["sha256"])) == 64


def test_only_the_first_problems_are_taken() -> None:
    benchmark = configured("benchmark=gsm8k", f"benchmark.path={PUBLIC}").benchmark
    assert [problem.answer for problem in load_benchmarks(benchmark, "curve", 2)["gsm8k"].problems] == ["7", "1400"]


def test_a_suite_takes_a_file_by_set() -> None:
    files = ", ".join(f"{name}: {PUBLIC / 'amc83.jsonl'}" for name in ("amc23", "aime25"))
    cfg = configured("benchmark=paper_suite", "benchmark.sets=[amc23, aime25]", f"benchmark.path={{{files}}}")
    found = load_benchmarks(cfg.benchmark, "final", 100)
    assert {name: len(one.problems) for name, one in found.items()} == {"amc23": 3, "aime25": 3}


def test_a_suite_is_no_single_file() -> None:
    cfg = configured("benchmark=paper_suite", f"benchmark.path={PUBLIC / 'amc83.jsonl'}")
    with pytest.raises(
        ConfigError, match=r"benchmark\.path must be a folder, or name a file for each of gsm8k, math500"
    ):
        load_benchmarks(cfg.benchmark, "final", 1)


def test_a_path_for_a_set_that_is_not_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"benchmark.path must be .* file by set \(gsm8k\)"):
        configured("benchmark=gsm8k", "benchmark.path={math500: a.jsonl}")


def test_a_folder_without_the_file(tmp_path: Path) -> None:
    cfg = configured("benchmark=gsm8k", f"benchmark.path={tmp_path}")
    with pytest.raises(DataError, match=r"must hold gsm8k_test.jsonl or gsm8k_test.parquet, but does not"):
        load_benchmarks(cfg.benchmark, "final", 1)


def test_a_local_set_needs_a_file() -> None:
    with pytest.raises(DataError, match=r"benchmark\.path must name the file that holds local, but is null"):
        load_benchmarks(configured("benchmark=local").benchmark, "final", 1)
    with pytest.raises(DataError, match=r"data\.source\.path must name the file that holds local"):
        build("data.source", configured("data=local").data.source).problems(0, 0, 1)
    with pytest.raises(DataError, match=r"benchmark\.path must name a file, but .* is a folder"):
        load_benchmarks(configured("benchmark=local", f"benchmark.path={PUBLIC}").benchmark, "final", 1)


def test_an_unknown_set_is_named() -> None:
    cfg = configured("benchmark=gsm8k", "benchmark.sets=[gsm8]")
    with pytest.raises(ConfigError, match=r"\(gsm8k, words1, .*\), but names 'gsm8'"):
        load_benchmarks(cfg.benchmark, "final", 1)


def test_all_of_a_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"words1 is generated and has no end: set evaluation\.final_problems"):
        load_benchmarks(configured().benchmark, "final", None)


def test_the_tiers_are_what_they_were() -> None:
    found = load_benchmarks(configured().benchmark, "curve", 2)
    assert list(found) == ["words1", "words2", "words3", "words4", "words5"]
    assert [problem.id for problem in found["words1"].problems] == ["words1-curve-0000", "words1-curve-0001"]


def test_a_run_reads_its_own_configuration_back() -> None:
    """The learner gets it as a file: control characters and paths by set come through unchanged."""
    cfg = configured("benchmark=paper_suite", "benchmark.path={aime25: a.jsonl}", "data=math")
    text = OmegaConf.to_yaml(OmegaConf.structured(cfg))
    assert validated(OmegaConf.create(text), TrainConfig) == cfg


MATH = source()


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(1, 12), st.integers(0, 6))
def test_every_problem_comes_once_an_epoch_whatever_the_batch(seed: int, n: int, epoch: int) -> None:
    data = MATH
    size = len(data.problem_set.problems)
    stream = [problem.id for step in range(size * (epoch + 1) // n + 1) for problem in data.problems(seed, step, n)]
    assert Counter(stream[size * epoch : size * (epoch + 1)]) == Counter(each.id for each in data.problem_set.problems)


def test_the_stream_depends_on_seed_and_place_alone() -> None:
    whole = source().problems(3, 0, 40)
    fresh = source()
    assert [*fresh.problems(3, 3, 10), *fresh.problems(3, 0, 10)] == [*whole[30:], *whole[:10]]
    assert source().problems(4, 0, 40) != whole
    size = len(fresh.problem_set.problems)
    assert whole[:size] != whole[size : 2 * size]  # an epoch has an order of its own


def test_problems_that_do_not_fit_are_left_out_and_counted() -> None:
    everything = source()
    longest = max(len(problem.question) for problem in everything.problem_set.problems)
    shorter = everything.fitting(lambda problem: len(problem.question) < longest)
    kept = [problem for problem in everything.problem_set.problems if len(problem.question) < longest]
    assert {problem.id for problem in shorter.problems(1, 0, len(kept))} == {problem.id for problem in kept}
    assert shorter.origin()["left_out_as_too_long"] == len(everything.problem_set.problems) - len(kept) >= 1
    whole = everything.fitting(lambda problem: True)
    assert whole.problems(3, 2, 7) == everything.problems(3, 2, 7)
    assert whole.origin()["left_out_as_too_long"] == 0
    with pytest.raises(DataError, match=r"No problem of math_train has a prompt that leaves room"):
        everything.fitting(lambda problem: False)
    words = WordsSource(["words1"])
    assert words.fitting(lambda problem: False) is words


@pytest.mark.parametrize("levels", ["3", "['3']", "hard"])
def test_levels_are_a_list_of_numbers(levels: str) -> None:
    with pytest.raises(
        ConfigError, match=r"data.source.levels must be a list of numbers, e.g. \[3, 4, 5\], or null, but"
    ):
        source(f"data.source.levels={levels}")


def test_levels_that_are_not_there() -> None:
    with pytest.raises(
        DataError, match=r"data.source.levels must name levels of math_train \(1, 3, 4, 5\), but is \[2\]"
    ):
        source("data.source.levels=[2]").problems(0, 0, 1)
    cfg = configured("data=gsm8k", f"data.source.path={PUBLIC}", "data.source.levels=[3]")
    with pytest.raises(DataError, match=r"levels of gsm8k_train \(it has none\)"):
        build("data.source", cfg.data.source).problems(0, 0, 1)


def test_the_record_says_what_was_taken() -> None:
    origin = source("data.source.levels=[4,3]").origin()
    assert (origin["file"], origin["rows"], origin["levels"], origin["problems"]) == ("math_train.jsonl", 6, [3, 4], 2)


def test_a_wrong_key_of_a_data_set_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.source.*shuffle"):
        build("data.source", configured("data=math", "+data.source.dataset.shuffle=true").data.source)


def test_contaminated_data_is_refused_unless_the_benchmark_is_named() -> None:
    cfg = configured("data=local", f"data.source.path={PUBLIC / 'amc83.jsonl'}", "benchmark=paper_suite")
    cfg.benchmark.path = str(PUBLIC)
    train = build("data.source", cfg.data.source)
    with pytest.raises(
        DataError, match=r"local holds 2 of the 2 problems of amc23, 0 as 0 .*allow_contaminated=\[amc23\]"
    ):
        refuse_contaminated(train, cfg.benchmark, ["aime24"])
    refuse_contaminated(train, cfg.benchmark, ["amc23"])
    refuse_contaminated(source(), cfg.benchmark, [])
    refuse_contaminated(WordsSource(["words1"]), cfg.benchmark, [])


def test_a_gold_answer_that_cannot_be_compared_is_named() -> None:
    good = ProblemSet("mine", [Problem("1", "?", r"\frac12", "mine")], {})
    refuse_unreadable([good])
    bad = ProblemSet(
        "theirs", [*good.problems, Problem("7b", "?", r"\frac{1}{", "theirs"), Problem("8", "?", "", "theirs")], {}
    )
    with pytest.raises(DataError, match=r"Problem 7b of theirs: the gold answer must be .*Problem 8 of theirs"):
        refuse_unreadable([good, bad])


def test_what_is_allowed_changes_no_step() -> None:
    changed = configured("data=math", "data.allow_contaminated=[math500]")
    assert changed.identity() == configured("data=math").identity()
    assert configured("data=math", "data.source.levels=[5]").identity() != changed.identity()
