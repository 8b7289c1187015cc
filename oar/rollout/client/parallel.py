"""Work side by side: requests, for a server batches what is in flight, and what several parties must do at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

Result = TypeVar("Result")
IN_FLIGHT = 64


def in_parallel(
    work: Callable[[int], Result], count: int, in_flight: int = IN_FLIGHT, timeout_s: float | None = None
) -> Iterator[tuple[int, Result]]:
    """`work(0)` ... `work(count - 1)` with their numbers, each as soon as it is done, `in_flight` at a time.

    The first error ends it: what has not begun never does, and nobody waits for the rest, not even the end of the process.
    Raises TimeoutError when `timeout_s` seconds have passed before all is done.
    """
    numbers = iter(range(count))
    over = Event()
    outcomes: SimpleQueue[tuple[int, Result] | BaseException] = SimpleQueue()

    def take_turns() -> None:
        for number in numbers:  # shared: each number goes to one thread
            if over.is_set():
                return
            try:
                outcomes.put((number, work(number)))
            except BaseException as error:  # noqa: BLE001 - raised again where the results are waited for
                outcomes.put(error)

    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for _ in range(min(in_flight, count)):
        Thread(target=take_turns, daemon=True).start()
    try:
        for _ in range(count):
            try:
                outcome = outcomes.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError from None
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        over.set()


def together(works: Sequence[Callable[[], Result]], timeout_s: float | None = None) -> list[Result]:
    """What each of `works` returns, all of them begun at once; ends as `in_parallel` does."""
    done = dict(in_parallel(lambda number: works[number](), len(works), len(works), timeout_s))
    return [done[number] for number in range(len(works))]


def begun(work: Callable[[], Result]) -> Callable[[], Result]:
    """Begin `work` beside what goes on here; what is returned waits for its result, or raises its error.

    Nobody else waits for it, not even the end of the process, which a ThreadPoolExecutor would hold up.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    return outcome.result
