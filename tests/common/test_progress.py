"""What a person sees of a run: lines, and at a terminal a bar below them."""

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = """
from oar.common.progress import step_bar
with step_bar("outputs/run", 3, 1, shown=True) as tell:
    tell(2, "step 2/3", "held-out 43.2 %")
    tell(3, "step 3/3 [grad] " + 100 * "x", "")
"""


def test_lines_are_left_as_they_are_where_there_is_no_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["step 2/3  held-out 43.2 %", "step 3/3 [grad] " + 100 * "x"]


def test_a_bar_stands_below_them_at_a_terminal() -> None:
    terminal, inside = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, env=environment, stdout=inside, stderr=inside)
    os.close(inside)
    shown = b""
    try:
        while part := os.read(terminal, 4096):
            shown += part
    except OSError:  # how Linux says that nobody is left to write
        pass
    finally:
        os.close(terminal)
    assert process.wait() == 0
    text = shown.decode()
    assert "step 2/3  held-out 43.2 %\r\n" in text
    assert "outputs/run, held-out 43.2 %" in text
    assert "3/3" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is there again
