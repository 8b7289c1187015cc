"""Requests side by side: a server batches what is in flight."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

Result = TypeVar("Result")
IN_FLIGHT = 64


def in_parallel(work: Callable[[int], Result], count: int) -> Iterator[tuple[int, Result]]:
    """`work(0)` ... `work(count - 1)` with their numbers, each as soon as it is done, `IN_FLIGHT` at a time.

    The first error ends it: what has not begun never does, and nobody waits for the rest.
    """
    pool = ThreadPoolExecutor(IN_FLIGHT)
    try:
        numbers = {pool.submit(work, number): number for number in range(count)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
