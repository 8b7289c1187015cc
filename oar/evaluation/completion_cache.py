"""Completions that are kept as they come, so that an evaluation that was interrupted goes on where it stood."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from oar.common.cache import kept_path
from oar.common.errors import ConfigError, DataError, OarError
from oar.evaluation.draw import Asked, Completion, Source

Watch = Callable[[int, int], None]
"""Told how many problems of a set are done, and how many tokens were drawn since it was last told."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Draws from `source` what `folder` does not hold yet: a file per set and sampling, a JSON line per problem.

    A file is named by the hash of what made it: `model` (the weights), `data` of the set (its origin and prompts), the
    problems, the sampling and the seed. Anything else is drawn anew beside it.
    """

    source: Source
    folder: Path
    model: Mapping[str, object]
    data: Mapping[str, Mapping[str, object]]

    def __call__(self, asked: Asked, watch: Watch) -> list[list[Completion]]:
        """The completions of each problem of a set, as `oar.evaluation.draw.draw`.

        Raises DataError for a line that is not ours, ConfigError where another process writes here, OarError where
        nothing can be written; what was drawn before is kept whatever ends it.
        """
        path, problems, seeds = self.path(asked), asked.problems, asked.seeds()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error
        with file:
            _lock(file, path)
            groups = read_groups(path, len(problems), asked.sampling.n)
            watch(len(groups), 0)
            missing = [index for index in range(len(problems)) if index not in groups]
            chosen, chosen_seeds = [problems[index] for index in missing], [seeds[index] for index in missing]
            samplings = [asked.sampling] * len(missing)
            for position, group in self.source(chosen, samplings, seeds=chosen_seeds) if missing else ():
                groups[missing[position]] = group
                _append(file, path, {"problem": missing[position], "completions": [asdict(one) for one in group]})
                watch(len(groups), sum(one.tokens for one in group))
        return [groups[index] for index in range(len(problems))]

    def path(self, asked: Asked) -> Path:
        """Where these completions are kept."""
        benchmark = asked.problems[0].benchmark
        made_of = {
            "model": self.model,
            "data": self.data[benchmark],
            "problems": [problem.id for problem in asked.problems],
            "sampling": asdict(asked.sampling),
            "seed": asked.seed,
        }
        return kept_path(self.folder, benchmark, made_of, ".jsonl")


def read_groups(path: Path, problems: int, n: int) -> dict[int, list[Completion]]:
    """The groups of `n` completions that a file holds, by problem; a last line that a kill cut off is dropped from it.

    Raises DataError on any other line that is not what `Kept` writes.
    """
    text = path.read_bytes().decode("ascii", errors="replace")
    *lines, cut = text.split("\n")
    groups: dict[int, list[Completion]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            index, group = int(row["problem"]), [Completion(**one) for one in row["completions"]]
        except (ValueError, KeyError, TypeError) as error:
            raise _broken(path, number) from error
        if not 0 <= index < problems or index in groups or len(group) != n:
            raise _broken(path, number)
        groups[index] = group
    if cut:
        os.truncate(path, len(text) - len(cut))  # in place, since the lock is on this file; every character is a byte
    return groups


def _broken(path: Path, number: int) -> DataError:
    return DataError(f"{path}, line {number} is not a problem's kept completions: delete the file to draw them again.")


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"{path.parent} is being written by another evaluation: wait for it, or choose another output_dir."
        ) from None


def _append(file: BinaryIO, path: Path, row: Mapping[str, object]) -> None:
    line = (json.dumps(row) + "\n").encode("ascii")
    try:
        while line:  # a write that is cut short says why when it is tried again
            line = line[file.write(line) :]
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> OarError:
    return OarError(
        f"{path} could not be written ({error.strerror or error}): mend that and run the same command again to go on."
    )
