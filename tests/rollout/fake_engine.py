"""A stand-in for a vLLM server that can misbehave: `python tests/rollout/fake_engine.py --port P --fault FAULT`."""

import argparse
import json
import math
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = (
    "ok",
    "die_after_n_requests",
    "hang",
    "wrong_version",
    "bad_json",
    "truncated_json",
    "http_500",
    "nan_logprobs",
    "missing_choice",
    "short_logprobs",
    "other_prompt",
    "aborted",
    "no_reload",
    "reload_dies",
    "busy_cache",
)


class FakeEngine(ThreadingHTTPServer):
    """The state of the server."""

    daemon_threads = True
    request_queue_size = 128  # the standard library's 5 would refuse what a real server takes

    def __init__(self, port: int, fault: str, after: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.fault, self.after = fault, after
        self.version = "default"
        self.completions = 0


class Handler(BaseHTTPRequestHandler):
    """The routes that `EngineClient` uses."""

    server: FakeEngine
    protocol_version = "HTTP/1.1"
    used = False

    def parse_request(self) -> bool:
        """A second request on a kept connection finds it closed: what a server's idle timeout does, only always."""
        if self.used:
            self.close_connection = True
            return False
        self.used = True
        return super().parse_request()

    def do_GET(self) -> None:
        version = "99" if self.server.fault == "wrong_version" else self.server.version
        routes: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": "policy", "max_model_len": 64}]},
            "/weight_info": {"weight_version": version},
        }
        self._json(routes.get(self.path, {}), 200 if self.path in routes else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}") if self._has_body() else {}
        fault = self.server.fault
        if self.path == "/v1/completions":
            self._completions(body)
        elif self.path == "/update_weight_version":
            self.server.version = body["new_version"]
            self._json({"success": True})
        elif self.path == "/collective_rpc" and fault == "reload_dies":
            os._exit(1)
        elif self.path == "/collective_rpc":
            self._json({"detail": "Not Found"}, 404) if fault == "no_reload" else self._json({"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self._json({"success": fault != "busy_cache"})

    def _completions(self, body: dict[str, Any]) -> None:
        fault = self.server.fault
        self.server.completions += 1
        if fault == "die_after_n_requests" and self.server.completions > self.server.after:
            os._exit(1)
        if fault == "hang":
            time.sleep(3600)
        if fault == "http_500":
            return self._json({"error": {"message": "EngineCore encountered an issue"}}, 500)
        if fault == "bad_json":
            return self._send(b"<html>not json</html>")
        length = body["max_tokens"]
        choice = {
            "finish_reason": "abort" if fault == "aborted" else "length",
            "prompt_token_ids": body["prompt"][:-1] if fault == "other_prompt" else body["prompt"],
            "token_ids": list(range(3, 3 + length)),
            "logprobs": {"token_logprobs": [-0.5] * length},
        }
        if fault == "nan_logprobs":
            choice["logprobs"] = {"token_logprobs": [math.nan] * length}
        if fault == "short_logprobs":
            choice["logprobs"] = {"token_logprobs": [-0.5] * (length - 1)}
        count = body["n"] - (fault == "missing_choice")
        answer = json.dumps({"choices": [{"index": index, **choice} for index in range(count)]}).encode()
        self._send(answer[: len(answer) // 2] if fault == "truncated_json" else answer)
        return None

    def _has_body(self) -> bool:
        return int(self.headers.get("Content-Length", 0)) > 0

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status)

    def _send(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fault", choices=FAULTS, default="ok")
    parser.add_argument("--after", type=int, default=3, help="completions answered before die_after_n_requests dies")
    options = parser.parse_args()
    with FakeEngine(options.port, options.fault, options.after) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()
