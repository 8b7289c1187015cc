"""What each test file costs: `make test ARGS='-p tests.durations'` ends with a table of seconds.

CPU seconds are those of all processes that a test uses, so they hardly depend on what else the machine does.
"""

from collections import defaultdict
from collections.abc import Generator

import psutil
import pytest

COUNTED = ("user", "system", "children_user", "children_system")
before = 0.0  # CPU seconds up to the end of the last phase


def cpu_seconds() -> float:
    """Of this process and everything it has started."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += sum(getattr(process.cpu_times(), name) for name in COUNTED)
        except psutil.NoSuchProcess:
            continue  # its parent has its seconds
    return total


def pytest_collection_finish() -> None:
    global before
    before = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    global before
    report = yield
    now = cpu_seconds()
    report.cpu_s, before = now - before, now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            spent = files[report.nodeid.partition("::")[0]]
            spent[0] += report.cpu_s
            spent[1] += report.duration
    lines = [f"| {file} | {cpu:.0f} | {wall:.0f} |" for file, (cpu, wall) in files.items()]
    total = [sum(spent) for spent in zip(*files.values(), strict=True)] or [0.0, 0.0]
    terminalreporter.write_line("| file | CPU s | wall s |\n|---|---:|---:|")
    terminalreporter.write_line("\n".join(sorted(lines)))
    terminalreporter.write_line(f"| all | {total[0]:.0f} | {total[1]:.0f} |")
