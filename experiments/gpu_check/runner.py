"""Parts one after another, each in a process of its own: an error, a kill or a hang is one verdict, and the next goes on.

`python -m experiments.gpu_check.runner MODULE:FUNCTION FILE` is that process; what it finds goes to the file.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from experiments.gpu_check.findings import ROOT, Finding, Findings, NotRunError, read
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
    limit_s: float
    what: str


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


def run_parts(parts: Sequence[Part], folder: Path, limit_of: Callable[[Part], float]) -> Iterator[Line]:
    """Run one after another; findings and output of each stay in `folder`."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    for part in parts:
        date, began, limit_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic(), limit_of(part)
        file, log = folder / f"{part.name}.jsonl", folder / f"{part.name}.log"
        command = [sys.executable, "-m", "experiments.gpu_check.runner", part.target, str(file)]
        with ChildProcess(command, log_path=log, grace_s=GRACE_S, env={"PYTHONPATH": path, **LOOPBACK}) as process:
            code = process.wait(limit_s)
        seconds = round(time.monotonic() - began, 1)
        findings, end = read(file)
        verdict, message = _judged(findings, end, code, limit_s, process.tail(1))
        yield Line(part.name, part.what, verdict, seconds, limit_s, message, findings, date)


def _judged(
    findings: Sequence[Finding], end: dict[str, object] | None, code: int | None, limit_s: float, last_line: str
) -> tuple[str, str]:
    """Verdict and message."""
    checked = [finding for finding in findings if finding.holds is not None]
    wrong = [f"{one.name}: {one.measured}, expected {one.expected}" for one in checked if not one.holds]
    if code is None:
        reached = f"the last number was {findings[-1].name}" if findings else "nothing was measured"
        return TOO_SLOW, f"stopped after {limit_s:g} s; {'; '.join([reached, *wrong[:1]])}."
    if end is None:
        why = f"signal {code - 128}, often a lack of memory" if code > 128 else f"exit code {code}"
        return FAILED, f"the process ended by {why}: {last_line.strip()[:200] or 'it printed nothing'}."
    if end["not_run"] is not None:
        return NOT_RUN, f"{end['not_run']}."
    if wrong:
        return FAILED, f"{len(wrong)} of {len(checked)} do not hold, first {wrong[0]}."
    return PASSED, f"{len(checked)} of {len(checked)} hold, {len(findings) - len(checked)} more were noted."


def main(target: str, path: Path) -> None:
    """Run one part here. An error in it is a finding; a signal or a time limit leaves the file without its last line."""
    findings, not_run = Findings(path), None
    with findings.piece("the part"):
        module, function = target.split(":")
        try:
            getattr(importlib.import_module(module), function)(findings)
        except NotRunError as reason:
            not_run = str(reason)
    findings.end(not_run)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
