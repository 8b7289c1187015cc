"""Parts one after another, each in a process of its own: an error, a kill or a hang is one verdict, and the next goes on."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.gpu_check.findings import Finding, read
from oar.common.processes import ChildProcess

PASSED, FAILED, TOO_SLOW, NOT_RUN = "passed", "failed", "too slow", "not run"
GRACE_S = 3.0  # what a part that is stopped gets to end
# One process needs no network, and a machine without one may have no other interface (as oar/learner/launch.py).
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True, slots=True)
class Part:
    """A part: its function as `module:function`, what it does in a sentence, and the seconds it may take on a GPU."""

    name: str
    target: str
    what: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Line:
    """What became of a part. message: one sentence; date: when it began, in UTC."""

    name: str
    what: str
    verdict: str
    seconds: float
    limit_s: float
    message: str
    findings: list[Finding]
    date: str

    @property
    def in_order(self) -> bool:
        """Whether nothing is left to mend."""
        return self.verdict in (PASSED, NOT_RUN)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def run_part(part: Part, folder: Path, limit_s: float) -> Line:
    """Run one part; its findings and its output stay in `folder`."""
    date, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    path, log = folder / f"{part.name}.jsonl", folder / f"{part.name}.log"
    command = [sys.executable, "-m", "experiments.gpu_check.child", part.target, str(path)]
    with ChildProcess(command, log_path=log, grace_s=GRACE_S, env={"PYTHONPATH": _path(), **LOOPBACK}) as process:
        code = process.wait(limit_s)
    seconds = time.monotonic() - began
    findings, end = read(path)
    verdict, message = _judged(findings, end, code, limit_s, process.tail(1))
    return Line(part.name, part.what, verdict, round(seconds, 1), limit_s, message, findings, date)


def run_parts(
    parts: Sequence[Part], folder: Path, limit_of: Callable[[Part], float], tell: Callable[[Line], None]
) -> list[Line]:
    """Run all of them, and `tell` of each as soon as it has ended."""
    lines = []
    for part in parts:
        lines.append(run_part(part, folder, limit_of(part)))
        tell(lines[-1])
    return lines


def _judged(
    findings: Sequence[Finding], end: dict[str, object] | None, code: int | None, limit_s: float, last_word: str
) -> tuple[str, str]:
    held = [finding for finding in findings if finding.holds is not None]
    wrong = [finding for finding in held if not finding.holds]
    first = f"{wrong[0].name}: {_told(wrong[0])}" if wrong else ""
    if code is None:
        reached = f"the last number was {findings[-1].name}" if findings else "nothing was measured"
        return TOO_SLOW, f"stopped after {limit_s:g} s; {reached}" + (f"; {first}" if wrong else "") + "."
    if end is None:
        why = f"signal {code - 128}, often a lack of memory" if code > 128 else f"exit code {code}"
        return FAILED, f"the process ended by {why}: {last_word.strip()[:200] or 'it said nothing'}."
    if end["not_run"] is not None:
        return NOT_RUN, f"{end['not_run']}."
    if wrong:
        return FAILED, f"{len(wrong)} of {len(held)} do not hold, first {first}."
    return PASSED, f"{len(held)} of {len(held)} hold, {len(findings) - len(held)} more were noted."


def _told(finding: Finding) -> str:
    value = f"{finding.value:.4g}" if isinstance(finding.value, float) else str(finding.value)
    return f"{value} {finding.unit}".strip() + f", expected {finding.expected}"


def _path() -> str:
    """This checkout, wherever the check was started from, before what is there already."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), root])
