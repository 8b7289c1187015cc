"""Stands between a run and its real engine, and damages one kind of answer from a chosen moment on."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit


def _no_numbers(body: bytes) -> bytes:
    answer = json.loads(body)
    for choice in answer["choices"]:
        choice["logprobs"]["token_logprobs"] = [math.nan] * len(choice["token_ids"])
    return json.dumps(answer).encode()


def _one_less(body: bytes) -> bytes:
    answer = json.loads(body)
    answer["choices"].pop()
    return json.dumps(answer).encode()


# Name: (the route whose answers are damaged, what becomes of the body)
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "truncated_json": ("/v1/completions", lambda body: body[: len(body) // 2]),
    "nan_logprobs": ("/v1/completions", _no_numbers),
    "fewer_completions": ("/v1/completions", _one_less),
    "wrong_version": ("/weight_info", lambda _: b'{"weight_version": "99"}'),
}


class DamagingProxy(ThreadingHTTPServer):
    """Forwards everything to the engine at `target`; while `fault` names one of DAMAGE, its route's answers come damaged.

    `struck_at` is the time (monotonic) of the first damaged answer, None before it.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine = urlsplit(target).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault: str | None = None
        self.struck_at: float | None = None

    def damaged(self, path: str, body: bytes) -> bytes:
        """What becomes of an answer."""
        if self.fault is None or path != DAMAGE[self.fault][0]:
            return body
        self.struck_at = self.struck_at or time.monotonic()
        return DAMAGE[self.fault][1](body)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A run that ended does not wait for its answers: nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    server: DamagingProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One request to the engine and its answer back."""
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        connection = HTTPConnection(self.server.engine)
        try:
            connection.request(self.command, self.path, sent, dict(self.headers))
            answer = connection.getresponse()
            status, body = answer.status, self.server.damaged(self.path, answer.read())
        finally:
            connection.close()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """The same."""
        self.do_GET()

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
