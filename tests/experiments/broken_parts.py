"""Parts of the GPU check that go wrong, each in a way of its own."""

import os
import signal
import time

from experiments.gpu_check.findings import Findings, NotRunError


def raises(findings: Findings) -> None:
    findings.at_most("before", 1.0, 2.0)
    raise RuntimeError("CUDA out of memory. Tried to allocate everything.\nand more")


def kills_itself(findings: Findings) -> None:
    findings.at_most("before", 1.0, 2.0)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(findings: Findings) -> None:
    findings.at_most("before", 1.0, 2.0)
    time.sleep(3600)


def does_not_hold(findings: Findings) -> None:
    findings.at_most("error", 0.5, 1e-4)
    findings.at_most("not a number", float("nan"), 1e-4)
    findings.note("beside", 7)


def fails_in_a_case(findings: Findings) -> None:
    with findings.case("first"):
        raise ValueError("a wrong shape")
    with findings.case("second"):
        findings.at_least("it", 3.0, 1.0)


def cannot_run(findings: Findings) -> None:
    raise NotRunError("there is no such thing here")


def passes(findings: Findings) -> None:
    findings.true("all", True, "well")
    findings.note("a word", "said")
