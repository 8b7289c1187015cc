"""Data sets as they are published: the rows of a local file or of the hub, nothing in them changed.

What was read once is kept for the life of the process, so that a run asks the hub at its start and never again.
"""

import hashlib
import json
import queue
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import requests

from oar.common.errors import DataError

HUB_DEADLINE_S = 15.0  # until a hub that says nothing counts as out of reach
HUB_REQUEST_S = 10.0  # for connecting, and again for the answer
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Rows:
    """`values` by column name, `places` where each row stands (for messages), `origin` what was read."""

    values: list[dict[str, Any]]
    places: list[str]
    origin: dict[str, object]

    @property
    def columns(self) -> list[str]:
        """Every column that some row has, in order of appearance."""
        return list(dict.fromkeys(column for row in self.values for column in row))


@cache
def file_rows(path: Path) -> Rows:
    """The rows of a JSON Lines (`.jsonl`) or Parquet (`.parquet`) file.

    Raises DataError, naming file and line, for one that is not there, has another suffix, holds no row, or whose
    content is not UTF-8, not JSON or not one object a line.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{path} must be a .jsonl or .parquet file, but ends in {path.suffix or 'no suffix'!r}.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): name a file that is there.") from error
    values, places = _json_lines(path, content) if path.suffix == ".jsonl" else _parquet(path)
    if not values:
        raise DataError(f"{path} must hold at least one problem, but is empty.")
    origin = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "rows": len(values)}
    return Rows(values, places, origin)


def _json_lines(path: Path, content: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    values, places = [], []
    # Not str.splitlines: it would also break lines at U+2028 and other characters that may stand inside a text.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: must be UTF-8, but {error.reason}: save the file as UTF-8.") from error
        except (ValueError, RecursionError) as error:  # of numbers and nestings that are too long as well
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{place}: must be one JSON object, but is not JSON ({reason}).") from error
        if not isinstance(value, dict):
            raise DataError(f"{place}: must be one JSON object, but is a {type(value).__name__}.")
        values.append(value)
        places.append(place)
    return values, places


def _parquet(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    import pandas as pd  # here, since nothing else that trains needs it

    try:
        frame = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{path} must be a Parquet file, but cannot be read as one: {reason}.") from error
    plain = frame.astype(object).where(frame.notna(), None)
    values = [{str(column): value for column, value in row.items()} for row in plain.to_dict("records")]
    return values, [f"{path}, row {number}" for number in range(len(values))]


@cache
def hub_rows(dataset: str, config: str | None, split: str, revision: str | None, path_key: str) -> Rows:
    """The rows of a public data set at a revision (None: the newest), through `datasets` and its cache.

    `path_key` is the config key that a local copy can be named with. Raises DataError within 20 seconds where the hub
    is out of reach, and for a data set, config or split that is not there.
    """
    import datasets  # takes a second, and only the hub needs it

    wanted = f"{dataset} ({', '.join(filter(None, (config, split, revision)))})"
    remedy = f"name a local copy with {path_key}=FILE, or set HF_HUB_OFFLINE=1 to use what is in the cache"
    if not datasets.config.HF_HUB_OFFLINE:
        _require_hub(datasets.config.HF_ENDPOINT, dataset, f"{wanted} cannot be loaded", remedy)
    try:
        builder = datasets.load_dataset_builder(dataset, config, revision=revision)
        builder.download_and_prepare()
        table = builder.as_dataset(split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:  # RuntimeError: a program
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(f"{wanted} cannot be loaded from the hub: {reason}; {remedy}.") from error
    found = builder.hash
    if revision is not None and COMMIT.fullmatch(revision) and found != revision:
        raise DataError(f"{wanted} is not in the cache, which holds revision {found}: {remedy.split(', or')[0]}.")
    values: list[dict[str, Any]] = table.to_list()
    origin = {"dataset": dataset, "config": config, "split": split, "revision": revision, "resolved": found}
    places = [f"{dataset}, {split} row {number}" for number in range(len(values))]
    return Rows(values, places, origin | {"rows": len(values)})


def _require_hub(endpoint: str, dataset: str, what: str, remedy: str) -> None:
    """Ask the hub for a sign of life: its own client would try again and again, for minutes if it hangs."""
    answers: queue.Queue[str | None] = queue.Queue()

    def ask() -> None:
        try:
            status = requests.head(f"{endpoint}/api/datasets/{dataset}", timeout=HUB_REQUEST_S).status_code
            answers.put(f"HTTP {status}" if status >= 500 else None)
        except requests.RequestException as error:
            answers.put(type(error).__name__)

    # In a thread of its own, because nothing else bounds the time that looking up a name takes.
    Thread(target=ask, daemon=True).start()
    try:
        trouble = answers.get(timeout=HUB_DEADLINE_S)
    except queue.Empty:
        trouble = f"no answer within {HUB_DEADLINE_S:.0f} s"
    if trouble is not None:
        raise DataError(f"{what}: the hub at {endpoint} cannot be reached ({trouble}); {remedy}.")
