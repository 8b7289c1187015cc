"""A plain OpenAI-compatible server that can misbehave: `python -m tests.rollout.fake_openai --fault FAULT`.

It knows texts alone: any other route than /v1/models and /v1/completions is a 404, and every key but OpenAI's own is a 400.
What it answers follows from prompt and seed.
"""

import argparse
import hashlib
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

FAULTS = (
    "ok",
    "http_500",
    "cut",
    "die",
    "hang",
    "bad_json",
    "no_model",
    "missing_choice",
    "no_text",
    "filtered",
)
KEYS = {"model", "prompt", "n", "temperature", "top_p", "max_tokens", "seed", "stop"}


class FakeServer(ThreadingHTTPServer):
    """The state of the server: a fault happens to every completion after the first `after`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, fault: str, after: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.fault, self.after, self.completions, self.lock = fault, after, 0, Lock()


class Handler(BaseHTTPRequestHandler):
    """The two routes."""

    server: FakeServer

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._json({"error": {"message": f"Not Found: {self.path}"}}, 404)
        models = [] if self.server.fault == "no_model" else [{"id": "mine", "object": "model"}, {"id": "other"}]
        return self._json({"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.completions += 1
            fault = self.server.fault if self.server.completions > self.server.after else "ok"
        if self.path != "/v1/completions":
            return self._json({"error": {"message": f"Not Found: {self.path}"}}, 404)
        if set(body) - KEYS or not isinstance(body["prompt"], str) or body["model"] != "mine" or body["seed"] >= 2**31:
            return self._json({"error": {"message": f"unknown request: {body}"}}, 400)
        if fault == "http_500":
            return self._json({"error": {"message": "CUDA out of memory"}}, 500)
        if fault == "die":
            os._exit(1)
        if fault == "hang":
            time.sleep(3600)
        if fault == "bad_json":
            return self._send(b"<html>not json</html>")
        choices: list[dict[str, Any]] = [
            {"index": index, "text": said(body, index), "finish_reason": "stop"} for index in range(body["n"])
        ]
        if fault == "missing_choice":
            choices.pop()
        if fault == "no_text":
            choices[0]["text"] = None
        if fault == "filtered":
            choices[0]["finish_reason"] = "content_filter"
        answer = json.dumps({"choices": choices[::-1]}).encode()
        return self._send(answer, len(answer) // 2 if fault == "cut" else None)

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status=status)

    def _send(self, body: bytes, sent: int | None = None, *, status: int = 200) -> None:
        """The whole length is announced; a connection that is cut off carries only `sent` bytes."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def said(body: dict[str, Any], index: int) -> str:
    """A completion with one of ten answers."""
    drawn = hashlib.sha256(json.dumps([body["prompt"], body["seed"], body["temperature"], index]).encode()).digest()
    return f" so we get {drawn[0] % 10}\n#### {drawn[0] % 10}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, default="ok")
    parser.add_argument("--after", type=int, default=0, help="completions that are answered before the fault begins")
    options = parser.parse_args()
    with FakeServer(options.port, options.fault, options.after) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()
