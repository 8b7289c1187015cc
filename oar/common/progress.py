"""What a user sees while something long goes on."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


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
