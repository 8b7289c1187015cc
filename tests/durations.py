"""What each test file costs, as a table: `python -m tests.durations [FILE ...]`.

CPU seconds hardly depend on what else the machine does; they hold all processes that a file starts.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def measure(file: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of one file in a pytest of its own, and pytest's summary."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", file], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
        begin = os.times().elapsed
        _, _, used = os.wait4(process.pid, 0)
        output.seek(0)
        *_, summary = re.findall(r"^\d+ \w+.*?(?= in )", output.read(), flags=re.MULTILINE) or ["no tests"]
    return os.times().elapsed - begin, used.ru_utime + used.ru_stime, summary


if __name__ == "__main__":
    files = sys.argv[1:] or sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    print("| file | CPU s | wall s | result |\n|---|---|---|---|")
    for file in files:
        wall_s, cpu_s, summary = measure(file)
        print(f"| {file} | {cpu_s:.0f} | {wall_s:.0f} | {summary} |", flush=True)
