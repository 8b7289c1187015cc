"""From the rows of a published data set to problems: which column is what, and where the final answer stands."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oar.common.errors import DataError
from oar.config.data import DatasetConfig
from oar.method.segments import BOX, extract_answer
from oar.tasks.data.rows import Rows, file_rows, hub_rows
from oar.tasks.problem import Problem, ProblemSet

LEVELS = range(1, 6)
COMMAND = BOX.removesuffix("{")


def load_problems(name: str, dataset: DatasetConfig, path: str | None, *, path_key: str) -> ProblemSet:
    """A data set as problems: from `path` (a file, or a folder that holds `dataset.file`), from the hub without one.

    `path_key` is the config key of `path`, for messages. Raises DataError for whatever is wrong with the data.
    """
    if path is not None:
        rows = file_rows(_local_file(dataset, Path(path), path_key))
    elif dataset.dataset is not None:
        rows = hub_rows(dataset.dataset, dataset.config, dataset.split, dataset.revision, path_key)
    else:
        raise DataError(f"{path_key} must name the file that holds {name}, but is null.")
    return ProblemSet(name, problems_of(name, dataset, rows), rows.origin)


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


def problems_of(name: str, dataset: DatasetConfig, rows: Rows) -> list[Problem]:
    """The problems of a data set, in its order.

    Raises DataError, naming the place, for a column or value that is missing, an id that occurs twice, an answer that is
    empty or not of the form it must have, and a level that is none.
    """
    columns = _columns(name, dataset, rows)
    problems: dict[str, Problem] = {}
    unanswered: list[str] = []
    marker = dataset.answer_marker or ""
    marked = bool(marker) and any(marker in str(row.get(columns.get("answer", ""))) for row in rows.values)
    for number, (row, place) in enumerate(zip(rows.values, rows.places, strict=True)):
        fields = {name: row.get(column) for name, column in columns.items()}
        identifier = str(_present(fields, "id", columns, place)) if "id" in columns else f"{name}-{number}"
        solution = _text(fields.get("solution"), "solution", place)
        stated = fields["answer"] if "answer" in columns else last_boxed(solution)
        if marked:
            solution, stated = _split_at(marker, _present(fields, "answer", columns, place), place)
        answer = _answer(dataset, stated, place)
        if not answer:
            unanswered.append(place)
            continue
        if identifier in problems:
            raise DataError(f"{place}: every id must be there once, but {identifier!r} is there before.")
        problems[identifier] = Problem(
            id=identifier,
            question=_question(dataset, _present(fields, "question", columns, place), place),
            answer=answer,
            benchmark=name,
            solution=re.sub(dataset.solution_remove, "", solution) if dataset.solution_remove else solution,
            level=_level(fields.get("level"), place),
            subject=_text(fields.get("subject"), "subject", place),
        )
    if len(unanswered) > dataset.max_unanswered:
        raise DataError(f"{unanswered[0]}: the answer must not be empty, but is ({len(unanswered)} such problems).")
    return list(problems.values())


def last_boxed(text: str) -> str:
    """What stands in the last `\\boxed` of a solution: `{...}` with its braces matched, or one token after a space.

    Empty where there is no box or it is not closed.
    """
    _, command, rest = text.rpartition(COMMAND)
    boxed = extract_answer(command + rest, BOX)
    unbraced = re.match(r"\s*([^\s$.,{]+)", rest) if command and boxed is None else None
    return boxed or (unbraced[1] if unbraced else "")


def _columns(name: str, dataset: DatasetConfig, rows: Rows) -> dict[str, str]:
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
        raise DataError(
            f"{rows.places[0]}: {name} must have its {needed} in a column called {' or '.join(candidates)}, but has "
            f"{', '.join(there)}: name the column in columns.{needed}."
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
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{place}: the answer must be a text or a number, but is {value!r}.")
    # 142.0 is how a number is stored where some answers of the column are not whole or are missing.
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    for part in dataset.answer_remove:
        text = text.replace(part, "")
    text = text.strip()
    if dataset.answer_form == "text" or not text:
        return text
    whole = re.fullmatch(r"([+-]?\d+)(\.0*)?", text.replace(",", ""))
    if whole is None:
        raise DataError(f"{place}: the answer must be a whole number, but is {value!r}.")
    return str(int(whole[1]))


def _level(value: Any, place: str) -> int | None:
    """The level as a number; None where the row has none, or says "Level ?" as two problems of MATH do."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "Level ?")):
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    found = re.fullmatch(r"(?:Level )?(\d+)", text.strip())
    if found is None or int(found[1]) not in LEVELS:
        raise DataError(f"{place}: the level must be {LEVELS[0]} to {LEVELS[-1]}, but is {value!r}.")
    return int(found[1])
