"""From the rows of a published data set to problems: which column is what, and where the final answer stands."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oar.common.errors import DataError
from oar.config.data import DatasetConfig
from oar.method.segments import BOX, extract_answer
from oar.tasks.data.rows import Rows, file_rows, hub_rows
from oar.tasks.problem import Problem, ProblemSet
from oar.tasks.verifier.grade import shared_pool

LEVELS = range(1, 6)
COMMAND = BOX.removesuffix("{")
_WHOLE = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d+))(?:\.0*)?")  # other commas part several answers
HANDFUL = 5  # bad rows that are told one by one
ADVICE = "Mend such rows, or take them out (of training data: data.source.on_bad_row=drop)."


def load_problems(
    name: str, dataset: DatasetConfig, path: str | None, *, path_key: str, dataset_key: str, drop: bool = False
) -> ProblemSet:
    """A data set as problems: from `path` (a file, or a folder that holds `dataset.file`), from the hub without one.

    The config keys of `path` and `dataset` are for messages. Raises DataError for whatever is wrong with the data. With `drop`
    rows that cannot be used are left out, a gold answer that the verifier cannot read among the reasons; `origin` says how many
    and why. Without, they are refused together.
    """
    if path is not None:
        rows = file_rows(_local_file(dataset, Path(path), path_key))
    elif dataset.dataset is not None:
        rows = hub_rows(dataset.dataset, dataset.config, dataset.split, dataset.revision, path_key)
    else:
        raise DataError(f"{path_key} must name the file that holds {name}, but is null.")
    problems, bad = problems_of(name, dataset, rows, f"{dataset_key}.columns")
    if not drop:
        if bad:
            raise DataError(f"{handful(bad)} {ADVICE}")
        return _shortest(ProblemSet(name, problems, rows.origin), dataset.shortest)
    unreadable = shared_pool().unreadable({problem.id: problem.answer for problem in problems})
    kept, bad = [problem for problem in problems if problem.id not in unreadable], [*bad, *unreadable.values()]
    if not kept:
        raise DataError(f"{name} must hold a problem that can be used, but has none: {handful(bad)}")
    dropped = {"rows": len(bad), "first": bad[:HANDFUL]}
    return _shortest(ProblemSet(name, kept, {**rows.origin, "dropped": dropped}), dataset.shortest)


def _shortest(everything: ProblemSet, n: int | None) -> ProblemSet:
    """The `n` problems with the shortest questions in characters, in the order of the data; None: all."""
    if n is None:
        return everything
    lengths = [len(problem.question) for problem in everything.problems]
    chosen = sorted(sorted(range(len(lengths)), key=lengths.__getitem__)[:n])  # stable: of equal lengths the first
    problems = [everything.problems[place] for place in chosen]
    return ProblemSet(everything.name, problems, {**everything.origin, "shortest": n})


def handful(bad: Sequence[str]) -> str:
    """The first complaints, and how many more there are."""
    more = f" ({len(bad) - HANDFUL} more like these.)" if len(bad) > HANDFUL else ""
    return " ".join(bad[:HANDFUL]) + more


def _local_file(dataset: DatasetConfig, path: Path, path_key: str) -> Path:
    if not path.is_dir():
        return path
    if dataset.file is None:
        raise DataError(f"{path_key} must name a file, but {path} is a folder.")
    files = [path / f"{dataset.file}{suffix}" for suffix in (".jsonl", ".parquet")]
    found = [file for file in files if file.exists()]
    if not found:
        names = " or ".join(file.name for file in files)
        raise DataError(f"{path_key}: the folder {path} must hold {names}, but does not.")
    return found[0]


def problems_of(name: str, dataset: DatasetConfig, rows: Rows, columns_key: str) -> tuple[list[Problem], list[str]]:
    """The problems of a data set, in its order, and what is wrong with each row that is none.

    That is, by its place: a value that is missing, an id that occurs twice, an answer that is empty or not of the form it must
    have, a level that is none. Raises DataError for a column that is missing.
    """
    columns = _columns(name, dataset, rows, columns_key)
    problems: dict[str, Problem] = {}
    bad: list[str] = []
    unanswered: list[str] = []
    marker = dataset.answer_marker or ""
    marked = bool(marker) and any(marker in str(row.get(columns.get("answer", ""))) for row in rows.values)
    for number, (row, place) in enumerate(zip(rows.values, rows.places, strict=True)):
        try:
            problem = _problem(name, dataset, columns, row, place, number, marker if marked else None)
        except DataError as error:
            bad.append(str(error))
            continue
        if problem is None:
            unanswered.append(f"{place}: the answer must not be empty, but is.")
        elif problem.id in problems:
            bad.append(f"{place}: every id must be there once, but {problem.id!r} is there before.")
        else:
            problems[problem.id] = problem
    return list(problems.values()), bad + (unanswered if len(unanswered) > dataset.max_unanswered else [])


def _problem(
    name: str,
    dataset: DatasetConfig,
    columns: Mapping[str, str],
    row: Mapping[str, Any],
    place: str,
    number: int,
    marker: str | None,
) -> Problem | None:
    """The problem of a row, None where it has no answer. `marker`: what precedes the answer in the data set's answer column."""
    fields = {field: row.get(column) for field, column in columns.items()}
    identifier = str(_present(fields, "id", columns, place)) if "id" in columns else f"{name}-{number}"
    solution = _text(fields.get("solution"), "solution", place)
    stated = fields["answer"] if "answer" in columns else last_boxed(solution)
    if marker is not None:
        solution, stated = _split_at(marker, _present(fields, "answer", columns, place), place)
    answer = _answer(dataset, stated, place)
    if not answer:
        return None
    return Problem(
        id=identifier,
        question=_question(dataset, _present(fields, "question", columns, place), place),
        answer=answer,
        benchmark=name,
        solution=re.sub(dataset.solution_remove, "", solution) if dataset.solution_remove else solution,
        level=_level(fields.get("level"), place),
        subject=_text(fields.get("subject"), "subject", place),
        columns=row,
    )


def last_boxed(text: str) -> str:
    """What stands in the last `\\boxed` of a solution: `{...}` with its braces matched, or one token after a space.

    Empty where there is no box or it is not closed.
    """
    _, command, rest = text.rpartition(COMMAND)
    boxed = extract_answer(command + rest, BOX)
    unbraced = re.match(r"\s*([^\s$.,{]+)", rest) if command and boxed is None else None
    return boxed or (unbraced[1] if unbraced else "")


def _columns(name: str, dataset: DatasetConfig, rows: Rows, columns_key: str) -> dict[str, str]:
    """The column that holds each field; fields that no column holds are left out."""
    there = rows.columns
    chosen = {}
    for key, candidates in dataset.columns.items():
        found = [column for column in candidates if column in there]
        if found:
            chosen[key] = found[0]
    needed = "question" if "question" not in chosen else "answer"
    boxed = dataset.answer_boxed and "solution" in chosen
    if needed not in chosen and not (needed == "answer" and boxed):
        candidates = dataset.columns.get(needed) or dataset.columns["solution"]
        example = next((column for column in there if column not in chosen.values()), "NAME")
        raise DataError(
            f"{rows.places[0]}: {name} must have its {needed} in a column called {' or '.join(candidates)}, but has "
            f"{', '.join(there)}: name the column, as in {columns_key}.{needed}=[{example}]."
        )
    return chosen


def _present(fields: Mapping[str, Any], key: str, columns: Mapping[str, str], place: str) -> Any:
    value = fields[key]
    if value is None:
        raise DataError(f"{place}: must have the key {columns[key]!r}, but has not.")
    return value


def _text(value: Any, key: str, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: the {key} must be a text, but is {value!r}.")
    return value


def _question(dataset: DatasetConfig, value: Any, place: str) -> str:
    question = _text(value, "question", place)
    for fault, mended in dataset.question_replace.items():
        question = question.replace(fault, mended)
    question = question.strip()
    if not question:
        raise DataError(f"{place}: the question must not be empty, but is.")
    return question


def _split_at(marker: str, value: Any, place: str) -> tuple[str, str]:
    """Solution and final answer of a text like GSM8K's."""
    solution, found, answer = str(value).rpartition(marker)
    if not found:
        raise DataError(f"{place}: the answer must follow {marker!r} as in the other rows, but there is none.")
    return solution.strip(), answer


def _answer(dataset: DatasetConfig, value: Any, place: str) -> str:
    """The final answer as text; empty where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value in (math.inf, -math.inf):
        raise DataError(f"{place}: the answer must be a text or a number, but is {value!r}.")
    # 142.0 is how a number is stored where some answers of the column are not whole or are missing.
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    for part in dataset.answer_remove:
        text = text.replace(part, "")
    text = text.strip()
    if dataset.answer_form == "text" or not text:
        return text
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        raise DataError(f"{place}: the answer must be a whole number, but is {value!r}.")
    return str(int(whole[1].replace(",", "")))


def _level(value: Any, place: str) -> int | None:
    """The level as a number; None where the row has none, or says "Level ?" as two problems of MATH do."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "Level ?")):
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    found = re.fullmatch(r"(?:Level )?(\d+)", text.strip())
    if found is None or int(found[1]) not in LEVELS:
        raise DataError(f"{place}: the level must be {LEVELS[0]} to {LEVELS[-1]}, but is {value!r}.")
    return int(found[1])
