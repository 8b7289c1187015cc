"""What a user sees while something long goes on."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def progress_bars() -> Progress:
    """Drawn once a second: more often costs a share of a core."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), refresh_per_second=1
    )


@contextmanager
def stage(progress: Progress, name: str, total: int = 1) -> Iterator[Callable[[int], None]]:
    """A bar while something goes on, and a line with its seconds when it is done."""
    bar, started = progress.add_task(name, total=total), time.monotonic()
    try:
        yield lambda done: progress.update(bar, completed=done)
    finally:
        progress.remove_task(bar)
    progress.console.print(f"{name}: {time.monotonic() - started:.1f} s", highlight=False)


@contextmanager
def step_bar(name: str, steps: int, done: int, *, shown: bool) -> Iterator[Callable[[int, str, str], None]]:
    """A line for each step, and at a terminal a bar below them, with the time left and what was measured last.

    What is entered takes the steps done, the line, and what was measured ("": nothing). `shown`: false for no bar.
    """
    progress = Progress(
        *(TextColumn("{task.description}", markup=False), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()),
        refresh_per_second=1,
        speed_estimate_period=3600,  # seconds: a step may take minutes, and an estimate needs two
        disable=not (shown and sys.stdout.isatty()),
    )
    bar = progress.add_task(name, total=steps, completed=done)

    def tell(done: int, line: str, measured: str) -> None:
        progress.console.print(f"{line}  {measured}".rstrip(), highlight=False, markup=False, soft_wrap=True)
        if measured:
            progress.update(bar, description=f"{name}, {measured}")
        progress.update(bar, completed=done)

    with progress:
        yield tell
