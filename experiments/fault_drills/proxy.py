"""Stands between a run and its real engine, and damages one kind of answer from a chosen moment on."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from oar.rollout.client.vllm import GENERATE


def _no_numbers(body: bytes) -> bytes:
    answer = json.loads(body)
    for choice in answer["choices"]:
        for one in choice["logprobs"]["content"]:
            one["logprob"] = math.nan
    return json.dumps(answer).encode()


def _one_less(body: bytes) -> bytes:
    answer = json.loads(body)
    answer["choices"].pop()
    return json.dumps(answer).encode()


class Damage(NamedTuple):
    """The route whose answers are damaged, what becomes of their bodies, and what the client says of it."""

    route: str
    change: Callable[[bytes], bytes]
    says: str


# tests/rollout/fake_engine.py has them as well.
DAMAGE = {
    "truncated_json": Damage(GENERATE, lambda body: body[: len(body) // 2], "broken JSON"),
    "nan_logprobs": Damage(GENERATE, _no_numbers, "not a finite number"),
    "fewer_completions": Damage(GENERATE, _one_less, "3 completions for a prompt instead of 4"),
    "wrong_version": Damage(
        "/weight_info", lambda _: b'{"weight_version": "99"}', "expected weight version .* but the engine has 99"
    ),
}


def damaged(fault: str | None, route: str, body: bytes) -> bytes:
    """What becomes of the answer `body` of a route under a fault; the body itself where the fault is not of this route."""
    damage = DAMAGE.get(fault or "")
    return damage.change(body) if damage is not None and damage.route == route else body


class DamagingProxy(ThreadingHTTPServer):
    """Forwards everything to the engine at `target`; while `fault` names one of DAMAGE, its route's answers come damaged.

    `struck_at` is the time (monotonic) of the first damaged answer, None before it.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.url = urlsplit(target).netloc, f"http://127.0.0.1:{self.server_address[1]}"
        self.fault: str | None = None
        self.struck_at: float | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A run that ended does not wait for its answers: nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    server: DamagingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One request to the engine and its answer back; of POST as well."""
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with closing(HTTPConnection(self.server.engine)) as connection:
            connection.request(self.command, self.path, sent, dict(self.headers))
            answer = connection.getresponse()
            came = answer.read()
        body = damaged(self.server.fault, self.path, came)
        if body != came:
            self.server.struck_at = self.server.struck_at or time.monotonic()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  # as the standard library calls it

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def damaging_proxy(target: str) -> Iterator[DamagingProxy]:
    """A proxy before `target` that listens in a thread of this process."""
    with DamagingProxy(target) as proxy:
        thread = Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
