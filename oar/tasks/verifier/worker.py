"""A verifier process: `python worker.py TIMEOUT_S`, started by `oar.tasks.verifier.pool.VerifierPool`.

One JSON request a line on standard input, one JSON reply a line on standard output, until the input ends. This process
imports sympy once and forks the one that does the work. A request that takes too long ends that child by the kernel's own
timer, which no computation can hold up (Python's signal handlers wait for C code, and math-verify's timeouts are made of
them), and the next child is there in milliseconds. Seconds are those of the processor, so that a busy machine changes no verdict.
"""

import json
import os
import signal
import sys

from oar.tasks.verifier.structure import formulas, judge, read
from oar.tasks.verifier.symbols import Sympy, comparable

WALL_FACTOR = 5  # times the timeout on the clock on the wall: for what waits without computing
# Parsers and caches that every child inherits.
WARM_UP = (
    (r"\frac{\sqrt{3}}{2}x^2+1", r"x^{2}\cdot\sqrt{3}/2+1"),
    (r"2\pi", r"\pi\cdot 2"),
    (r"\sin^2 y", r"1-\cos^2 y"),
)


def reply_to(request: dict[str, str]) -> dict[str, object]:
    """`correct` for a gold answer and an answer, `unparsable` formulas for a gold answer alone."""
    if "answer" in request:
        return {"correct": judge(request["gold"], request["answer"], Sympy())}
    tree = read(request["gold"])
    return {"unparsable": [] if tree is None else [latex for latex in formulas(tree) if not comparable(latex)]}


def send(reply: dict[str, object]) -> None:
    """One line, in one piece."""
    os.write(sys.stdout.fileno(), json.dumps(reply).encode() + b"\n")


def serve(timeout_s: float) -> None:
    """Answer requests until the input ends. The timers' default action ends this process."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        signal.setitimer(signal.ITIMER_REAL, timeout_s * WALL_FACTOR)
        request = json.loads(line)
        reply = reply_to(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send({"id": request["id"], **reply})


def main(timeout_s: float) -> None:
    """Fork a server, and another one for each that a request has ended."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the end of the input ends this process
    for gold, answer in WARM_UP:
        judge(gold, answer, Sympy())
    send({"ready": True})
    while (child := os.fork()) != 0:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        send({"failed": "timeout" if code in (-signal.SIGPROF, -signal.SIGALRM) else "crash"})
    serve(timeout_s)


if __name__ == "__main__":
    main(float(sys.argv[1]))
