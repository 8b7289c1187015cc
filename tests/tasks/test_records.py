"""Problems out of public columns: each data set's traps, worked out by hand, and the sentences for what cannot be read."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oar.common.errors import ConfigError, DataError
from oar.config import TrainConfig, build, validated
from oar.config.data import DatasetConfig
from oar.tasks.data.records import last_boxed, load_problems
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.problem import Problem, ProblemSet
from tests.config.test_config import composed

PUBLIC = Path(__file__).parents[1] / "data" / "public"


def benchmark(name: str, path: Path = PUBLIC) -> list[Problem]:
    cfg = validated(composed(f"benchmark={name}", f"benchmark.path={path}"), TrainConfig)
    return list(load_benchmarks(cfg.benchmark, "final", None)[name].problems)


def training(name: str, *overrides: str) -> list[Problem]:
    cfg = validated(composed(f"data={name}", f"data.source.path={PUBLIC}", *overrides), TrainConfig)
    return list(build("data.source", cfg.data.source).problem_set.problems)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load_set(path: Path, drop: bool = False, **settings: object) -> ProblemSet:
    """A file with plain columns."""
    columns = {key: [key] for key in ("id", "question", "answer", "solution", "level", "subject")}
    dataset = DatasetConfig(**{"dataset": None, "columns": columns, "answer_form": "text"} | settings)
    return load_problems("mine", dataset, str(path), path_key="data.source.path", dataset_key="the.key", drop=drop)


def load(path: Path, **settings: object) -> list[Problem]:
    return list(load_set(path, **settings).problems)  # type: ignore[arg-type]


def test_gsm8k_splits_rationale_and_answer() -> None:
    problems = benchmark("gsm8k")
    assert [problem.answer for problem in problems] == ["7", "1400", "-5"]
    assert problems[0].solution == "Mara keeps 12 - 5 = 7 rolls."
    assert [problem.id for problem in problems] == ["gsm8k-0", "gsm8k-1", "gsm8k-2"]
    assert {problem.benchmark for problem in problems} == {"gsm8k"}


def test_a_line_separator_inside_a_text_ends_no_line() -> None:
    first, second = training("gsm8k")
    assert first.question == "Ole picks 9 pears\u2028and eats 2. How many pears are left?"
    assert (first.answer, second.answer, second.solution) == ("7", "60", "She reads 15 * 4 = $60 pages.")


def test_math500_keeps_latex_as_it_is() -> None:
    first, second = benchmark("math500")
    assert first == Problem(
        id="test/prealgebra/1.json",
        question=r"Find the reciprocal of $2 \frac{1}{3}$ as a common fraction.",
        answer=r"\frac{3}{7}",
        benchmark="math500",
        solution=r"It is $\boxed{\frac{3}{7}}$.",
        level=3,
        subject="Prealgebra",
    )
    assert (second.answer, second.level) == (r"\left( 3, \frac{\pi}{2} \right)", 5)


def test_of_several_columns_the_first_named_counts(tmp_path: Path) -> None:
    row = {"id": 7, "question": "copy", "answer": "1", "problem": "original", "unique_id": "test/algebra/7.json"}
    (problem,) = benchmark("math500", write(tmp_path / "a.jsonl", row))
    assert (problem.id, problem.question) == ("test/algebra/7.json", "original")


def test_math_takes_the_last_box_and_leaves_out_the_empty_one() -> None:
    problems = training("math", "data.source.levels=null")
    assert [problem.answer for problem in problems] == ["25", r"\frac{1}{\sqrt{4}}", "2", "4", r"120^\circ"]
    assert [problem.level for problem in problems] == [1, 3, 4, None, 5]
    assert [problem.id for problem in problems] == [f"math_train-{row}" for row in (0, 1, 2, 4, 5)]
    assert problems[0].question == "Compute $3^2 + 4^2$."
    assert problems[4].question == r"A \textbf{regular} hexagon has which interior angle?"
    assert [problem.subject for problem in problems][:3] == ["Algebra", "Algebra", "Intermediate Algebra"]


def test_math_levels_3_to_5_is_the_default() -> None:
    assert [problem.level for problem in training("math")] == [3, 4, 5]
    assert [problem.level for problem in training("math", "data.source.levels=[1,5]")] == [1, 5]


def test_aime24_without_an_answer_column() -> None:
    problems = benchmark("aime24")
    assert [(problem.id, problem.answer) for problem in problems] == [("60", "25"), ("61", "128")]


def test_aime24_with_an_answer_column(tmp_path: Path) -> None:
    """As HuggingFaceH4/aime_2024: the column counts, not what the solution boxes on its way."""
    row = {"id": 60, "problem": "q", "solution": r"\boxed{\textbf{(540)}}", "answer": "045", "url": "u", "year": "2024"}
    assert [problem.answer for problem in benchmark("aime24", write(tmp_path / "a.jsonl", row))] == ["45"]


def test_aime25_mends_escapes_and_degrees() -> None:
    first, second = benchmark("aime25")
    assert first.question.startswith(r"Triangle $\triangle ABC$ has sides $\frac{3}{2}$, $2$ and $\frac{5}{2}$")
    assert (first.answer, second.answer) == ("9", "336")


def test_amc_answers_are_whole() -> None:
    assert [problem.answer for problem in benchmark("amc23")] == ["27", "-1"]
    assert [problem.answer for problem in benchmark("amc83")] == ["27", "-1", "142"]


def test_parquet_gives_the_same_problems(tmp_path: Path) -> None:
    for name in ("amc23", "math500"):
        pd.read_json(PUBLIC / f"{name}.jsonl", lines=True).to_parquet(tmp_path / f"{name}.parquet")
        assert benchmark(name, tmp_path) == benchmark(name)


def test_parquet_without_some_levels(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "1", "level": 4}, {"question": "r", "answer": "2", "level": None}]
    pd.DataFrame(rows).to_parquet(tmp_path / "mine.parquet")
    assert [problem.level for problem in load(tmp_path / "mine.parquet")] == [4, None]


@given(st.integers(-(10**15), 10**15), st.sampled_from(["{}", "0{}", "{}.0", "{}.", " {} ", "{:,}"]))
def test_every_way_to_write_a_whole_number_is_the_number(tmp_path_factory: pytest.TempPathFactory, number, way) -> None:
    path = tmp_path_factory.getbasetemp() / "whole.jsonl"
    for written in (way.format(abs(number)), number, float(number)):
        content = json.dumps({"question": "q", "answer": written}).encode()
        path = path.with_name(f"{abs(hash(content))}.jsonl")
        path.write_bytes(content)
        (problem,) = load(path, answer_form="integer")
        assert problem.answer == str(abs(number) if isinstance(written, str) else number)


PIECES = ["a", "1", " ", ",", r"\b", r"\{", r"\}"]  # an escaped brace opens and closes nothing
LATEX = st.recursive(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    lambda inner: st.lists(inner.map("{{{}}}".format), max_size=3).map("".join),
)


@given(LATEX, st.text(max_size=10), st.text("x ", max_size=5))
def test_the_last_box_comes_back_whole(content, before, after) -> None:
    assert last_boxed(rf"{before}\boxed{{0}} \boxed{{{content}}}{after}") == content.strip()


@pytest.mark.parametrize("text", ["", "no box", r"\boxed", r"\boxed{1", r"\boxed{}"])
def test_no_box(text: str) -> None:
    assert last_boxed(text) == ""


GOOD = {"id": "a", "question": "q", "answer": "1"}


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([GOOD, GOOD], {}, "line 2: every id must be there once, but 'a'"),
        ([GOOD, {"id": 1, "answer": "1"}], {}, "line 2: must have the key 'question'"),
        ([GOOD, {"question": "q", "answer": "1"}], {}, "line 2: must have the key 'id'"),
        ([GOOD | {"question": " "}], {}, "line 1: the question must not be empty"),
        ([GOOD | {"question": 3}], {}, "line 1: the question must be a text, but is 3"),
        ([GOOD | {"answer": " "}], {}, "line 1: the answer must not be empty"),
        ([GOOD | {"answer": None}], {}, "line 1: the answer must not be empty"),
        ([GOOD | {"answer": float("nan")}], {}, "line 1: the answer must not be empty"),
        ([GOOD | {"answer": ["1"]}], {}, r"line 1: the answer must be a text or a number, but is \['1'\]"),
        ([GOOD | {"answer": True}], {}, "line 1: the answer must be a text or a number, but is True"),
        (
            [GOOD | {"answer": "1/2"}],
            {"answer_form": "integer"},
            "line 1: the answer must be a whole number, but is '1/2'",
        ),
        ([GOOD | {"answer": 0.5}], {"answer_form": "integer"}, "whole number, but is 0.5"),
        ([GOOD | {"answer": "3,4"}], {"answer_form": "integer"}, "whole number, but is '3,4'"),
        ([GOOD | {"answer": "7,5,3"}], {"answer_form": "integer"}, "whole number, but is '7,5,3'"),
        ([GOOD | {"answer": float("inf")}], {"answer_form": "integer"}, "text or a number, but is inf"),
        ([GOOD | {"answer": float("-inf")}], {}, "text or a number, but is -inf"),
        ([GOOD | {"level": 6}], {}, "line 1: the level must be 1 to 5, but is 6"),
        ([GOOD | {"level": "Level 0"}], {}, "the level must be 1 to 5, but is 'Level 0'"),
        ([GOOD | {"level": "hard"}], {}, "the level must be 1 to 5, but is 'hard'"),
        ([GOOD | {"level": 2.5}], {}, "the level must be 1 to 5, but is 2.5"),
        ([GOOD | {"answer": "x #### 1"}, GOOD | {"id": "b"}], {"answer_marker": "####"}, "line 2: .* follow '####'"),
        ([{"prompt": "q", "answer": "1"}], {}, "question in a column called question, but has prompt, answer"),
        ([{"question": "q", "gold": "1"}], {}, "answer in a column called answer, but has question, gold"),
        ([{"question": "q"}], {"answer_boxed": True}, "answer in a column called answer"),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path: Path, rows: list, settings: dict, said: str) -> None:
    path = write(tmp_path / "mine.jsonl", *rows)
    with pytest.raises(DataError, match=said) as caught:
        load(path, **settings)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_problems_without_an_answer_than_known_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", GOOD, *({"id": str(n), "question": "q", "answer": ""} for n in range(3)))
    assert len(load(path, max_unanswered=3)) == 1
    with pytest.raises(DataError, match=r"line 2: the answer must not be empty, .*line 3: .*line 4: "):
        load(path, max_unanswered=2)


def test_the_shortest_questions_are_kept_in_the_order_of_the_data(tmp_path: Path) -> None:
    questions = ["four", "nine long", "one", "six...", "five", "two"]
    rows = [{"id": str(n), "question": question, "answer": "1"} for n, question in enumerate(questions)]
    path = write(tmp_path / "mine.jsonl", *rows)
    for drop in (False, True):
        found = load_set(path, drop=drop, shortest=3)
        assert [problem.id for problem in found.problems] == ["0", "2", "5"]  # of three with four letters the first
        assert found.origin["shortest"] == 3
    assert len(load(path, shortest=100)) == len(load(path)) == 6
    assert "shortest" not in load_set(path).origin


BAD = [
    GOOD | {"id": "b", "answer": ""},
    GOOD | {"id": "c", "question": None},
    GOOD,
    GOOD | {"id": "d", "answer": r"\frac{1}{"},
    GOOD | {"id": "e", "level": 9},
]


def test_bad_rows_are_told_together_up_to_a_handful(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mine.jsonl", GOOD, *BAD, *({"id": str(n), "question": "q", "answer": []} for n in range(4))
    )
    with pytest.raises(DataError) as caught:
        load(path)
    assert re.findall(r"line (\d+):", str(caught.value)) == ["3", "4", "6", "7", "8"]
    assert str(caught.value).endswith(
        "(3 more like these.) Mend such rows, or take them out (of training data: data.source.on_bad_row=drop)."
    )


def test_dropped_rows_are_counted_with_their_reasons(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", GOOD, GOOD | {"id": "z", "answer": "2", "hint": "x"}, *BAD)
    found = load_set(path, drop=True)
    assert [problem.id for problem in found.problems] == ["a", "z"]
    dropped = found.origin["dropped"]
    assert isinstance(dropped, dict)
    assert dropped["rows"] == 5
    assert "Problem d: the gold answer must be" in dropped["first"][-1]
    assert "dropped" in load_set(write(tmp_path / "good.jsonl", GOOD), drop=True).origin
    assert "dropped" not in load_set(tmp_path / "good.jsonl").origin
    with pytest.raises(DataError, match=r"mine must hold a problem that can be used, but has none: .*line 1"):
        load(write(tmp_path / "none.jsonl", BAD[0]), drop=True)


def test_a_problem_keeps_the_columns_of_its_row(tmp_path: Path) -> None:
    (problem,) = load(
        write(tmp_path / "mine.jsonl", GOOD | {"answer": "x #### 1", "tests": ["a"]}), answer_marker="####"
    )
    assert (problem.answer, problem.columns["answer"], problem.columns["tests"]) == ("1", "x #### 1", ["a"])


def test_a_missing_column_is_answered_with_the_key_that_names_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", {"prompt": "q", "answer": "1"})
    for key, overrides, read in (
        ("data.source.dataset", ["data=local", f"data.source.path={path}"], "data"),
        ("benchmark.sources.local", ["benchmark=local", f"benchmark.path={path}"], "benchmark"),
    ):
        with pytest.raises(DataError) as caught:
            training("local", *overrides[1:]) if read == "data" else benchmark("local", path)
        said = str(caught.value).rpartition("as in ")[2].removesuffix(".")
        assert said == f"{key}.columns.question=[prompt]"
        cfg = validated(composed(*overrides, said), TrainConfig)
        if read == "data":
            assert build("data.source", cfg.data.source).problem_set.problems[0].question == "q"
        else:
            assert load_benchmarks(cfg.benchmark, "final", None)["local"].problems[0].question == "q"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("~benchmark.sources.gsm8k.columns.question", "columns must name question"),
        ("+benchmark.sources.gsm8k.columns.title=[t]", "names id, question, answer, solution, title"),
        ("~benchmark.sources.gsm8k.columns.answer", "columns must name answer"),
        ("benchmark.sources.gsm8k.answer_form=number", "integer, text"),
        ("+benchmark.sources.gsm8k.max_unanswered=-1", "0 or more, but is -1"),
        ("benchmark.sources.gsm8k.solution_remove='<<['", "solution_remove must be a regular expression, but is '<<['"),
        ("benchmark.sources.gsm8k.shortest=0", "shortest must be 1 or more, or null for all, but is 0"),
        ("+benchmark.sources.gsm8k.shuffle=true", "shuffle"),
    ],
)
def test_settings_that_cannot_work_are_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        validated(composed("benchmark=gsm8k", override), TrainConfig)
