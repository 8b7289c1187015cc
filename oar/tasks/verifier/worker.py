"""A verifier process: `python worker.py TIMEOUT_S MODULE`, started by `oar.tasks.verifier.pool.VerifierPool`.

One JSON request a line on standard input, one JSON reply a line on standard output, until the input ends. This process
imports MODULE once, whose `warm_up` fills what every child inherits, and forks the one that does the work by its `reply_to`. A
request that takes too long ends that child by the kernel's own timer, which no computation can hold up (Python's signal handlers
wait for C code, and math-verify's timeouts are made of them), and the next child is there in milliseconds. Seconds are those of
the processor, so that a busy machine changes no verdict.
"""

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

WALL_FACTOR = 5  # times the timeout on the clock on the wall: for what waits without computing
OUTPUT = os.dup(1)  # replies alone go there; what a module prints goes to standard error


def send(reply: dict[str, object]) -> None:
    """One line, in one piece."""
    os.write(OUTPUT, json.dumps(reply).encode() + b"\n")


def serve(timeout_s: float, module: Any) -> None:
    """Answer requests until the input ends. The timers' default action ends this process."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        signal.setitimer(signal.ITIMER_REAL, timeout_s * WALL_FACTOR)
        request = json.loads(line)
        reply = module.reply_to(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send({"id": request["id"], **reply})


def main(timeout_s: float, name: str) -> None:
    """Fork a server, and another one for each that a request has ended."""
    # Ctrl-C reaches the whole group; the end of the input ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    module = import_module(name)
    module.warm_up()
    send({"ready": True})
    while (child := os.fork()) != 0:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        send({"failed": "timeout" if code in (-signal.SIGPROF, -signal.SIGALRM) else "crash"})
    serve(timeout_s, module)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
