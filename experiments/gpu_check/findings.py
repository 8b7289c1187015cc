"""What a part measures and what it is held against: a line of JSON each, written at once.

So what was measured before a part hung or was killed is kept. No torch here: a part may want to end before it is loaded.
"""

import gc
import json
import math
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

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


class Findings:
    """Those of one part, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def note(self, name: str, value: float | str, unit: str = "", expected: str = "") -> None:
        """Something to read, which no verdict rests on."""
        self._write(Finding(name, value, unit, expected))

    def at_most(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """A number that must not be above `bound`; NaN is."""
        self._write(Finding(name, value, unit, f"<= {bound:g}", value <= bound))

    def at_least(self, name: str, value: float, bound: float, unit: str = "") -> None:
        """A number that must not be below `bound`; NaN is."""
        self._write(Finding(name, value, unit, f">= {bound:g}", value >= bound))

    def true(self, name: str, value: bool, expected: str) -> None:
        """Something that must be so."""
        self._write(Finding(name, "yes" if value else "no", "", expected, bool(value)))

    def case(self, name: str) -> "Case":
        """A piece of the part, which may fail without ending it."""
        return Case(self, name)

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


class Case:
    """`with findings.case(name):` an error in the block is a finding that does not hold, and the part goes on."""

    def __init__(self, findings: Findings, name: str) -> None:
        self._findings, self._name = findings, name

    def __enter__(self) -> None:
        print(f"-- {self._name}", flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(value, NotRunError):
            self._findings.note(self._name, f"not run: {value}")
        elif isinstance(value, Exception):
            traceback.print_exception(value, file=sys.stderr)
            self._findings._write(Finding(self._name, told(value), "", "no error", False))
            value.__traceback__ = None  # its frames hold the tensors that the next case needs the memory of
        elif value is not None:
            return False
        _give_memory_back()
        return True


def told(error: BaseException) -> str:
    """An error in one line: its kind, its first line, and the line of this repository it came from."""
    lines = str(error).splitlines() or [""]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    where = f" ({Path(own[-1].filename).relative_to(ROOT)}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {lines[0][:300]}{where}"


def read(path: Path) -> tuple[list[Finding], dict[str, object] | None]:
    """What a part has written, and its last word, None where it never came to it."""
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


def _give_memory_back() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
