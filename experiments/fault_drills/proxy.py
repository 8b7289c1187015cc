"""Stands between a run and its real engine, and damages one kind of answer from the moment it is told to."""

import json
import math
import time
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
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


class DamagingProxy:
    """Forwards everything to the engine at `target`; after `arm` the answers of one route come damaged.

    `struck_at` is the time (monotonic) of the first damaged answer, None before it.
    """

    def __init__(self, target: str) -> None:
        self._address = urlsplit(target).netloc
        self._fault: str | None = None
        self.struck_at: float | None = None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.forward(self)

            def do_POST(self) -> None:
                proxy.forward(self)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A run that ended does not wait for its answers: nothing to tell."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def arm(self, fault: str) -> None:
        """Damage the answers that come from now on, as DAMAGE tells."""
        self._fault = fault

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        """One request to the engine and its answer back."""
        sent = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        connection = HTTPConnection(self._address)
        try:
            connection.request(handler.command, handler.path, sent, dict(handler.headers))
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
        finally:
            connection.close()
        if self._fault is not None and handler.path == DAMAGE[self._fault][0]:
            body = DAMAGE[self._fault][1](body)
            self.struck_at = self.struck_at or time.monotonic()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def __enter__(self) -> "DamagingProxy":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
