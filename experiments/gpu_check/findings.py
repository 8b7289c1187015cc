"""What a part measures and what it is held against: a line of JSON each, written at once.

So what was measured before a part hung or was killed is not lost. No torch here: a part may want to end before it is loaded.
"""

import gc
import json
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NotRunError(Exception):
    """The part, or a case of it, cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A number or a word with its unit; expected: what it was held against, in words; holds: None where nothing was."""

    name: str
    value: float | str
    unit: str = ""
    expected: str = ""
    holds: bool | None = None

    @property
    def measured(self) -> str:
        """Value and unit."""
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{value} {self.unit}".strip()


class Findings:
    """Those of one part, in a file; within a case their names begin with its name."""

    def __init__(self, path: Path) -> None:
        self._path, self._case = path, ""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def note(
        self, name: str, value: float | str, unit: str = "", expected: str = "", holds: bool | None = None
    ) -> None:
        """Something to read, which no verdict rests on without `holds`."""
        self._write(Finding(self._case + name, value, unit, expected, holds))

    def at_most(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """A number that must not be above `bound`; NaN is."""
        self.note(name, value, unit, f"<= {bound:g}", value <= bound)

    def at_least(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """A number that must not be below `bound`; NaN is."""
        self.note(name, value, unit, f">= {bound:g}", value >= bound)

    def true(self, name: str, value: bool, expected: str) -> None:
        """Something that must be so."""
        self.note(name, "yes" if value else "no", "", expected, bool(value))

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """A piece of the part whose findings bear its name."""
        outer, self._case = self._case, f"{name}: "
        with self.piece(name):
            yield
        self._case = outer

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """A piece of the part: an error in the block is a finding that does not hold, and the part goes on."""
        print(f"-- {name}", flush=True)
        try:
            yield
        except NotRunError as reason:
            self._write(Finding(name, f"not run: {reason}"))
        except Exception as error:  # noqa: BLE001  # whatever it is, the part goes on
            traceback.print_exception(error, file=sys.stderr)
            self._write(Finding(name, _one_line(error), "", "no error", False))
            error.__traceback__ = None  # its frames hold the tensors that the next case needs the memory of
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def end(self, not_run: str | None = None) -> None:
        """The part came to its end; `not_run`: why it measured nothing."""
        self._append({"ended": True, "not_run": not_run})

    def _write(self, finding: Finding) -> None:
        row = asdict(finding)
        if isinstance(finding.value, float) and not math.isfinite(finding.value):
            row["value"] = str(finding.value)  # JSON knows no NaN
        self._append(row)

    def _append(self, row: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _one_line(error: BaseException) -> str:
    """An error's kind, its first line, and the line of this repository it came from."""
    lines = str(error).splitlines() or [""]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(ROOT)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    where = f" ({Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {lines[0][:300]}{where}"


def read(path: Path) -> tuple[list[Finding], dict[str, object] | None]:
    """What a part has written, and its last line, None where the part never came to it."""
    findings, end = [], None
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # half a line of a process that was killed
        if "ended" in row:
            end = row
        else:
            findings.append(Finding(**row))
    return findings, end
