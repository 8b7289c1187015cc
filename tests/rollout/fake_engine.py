"""A stand-in for a vLLM server that can misbehave: `python -m tests.rollout.fake_engine --port P --fault FAULT`."""

import argparse
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from experiments.fault_drills.proxy import DAMAGE, damaged
from oar.rollout.client.vllm import GENERATE

FAULTS = (
    "ok",
    "die_after_n_requests",
    "hang",
    "old_release",
    "bad_json",
    "http_500",
    "short_logprobs",
    "other_prompt",
    "aborted",
    "no_reload",
    "reload_dies",
    "busy_cache",
    "fails_at",
    "hangs_at",
    "dies_at",
    *DAMAGE,
)


class FakeEngine(ThreadingHTTPServer):
    """The state of the server."""

    daemon_threads = True
    request_queue_size = 128  # the standard library's 5 would refuse what a real server takes

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", options.port), Handler)
        self.token = os.environ["OAR_ENGINE_TOKEN"] if options.asks else None
        self.fault, self.after, self.at = options.fault, options.after, options.at
        self.world_size, self.served = options.world_size, {"id": options.model, "max_model_len": options.max_model_len}
        self.version = "default"
        self.completions = 0
        self.updating = options.updating
        self.calls: list[dict[str, Any]] = []  # every POST: route, body, and when it came


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
        if not super().parse_request():
            return False
        token = self.server.token
        if token is not None and self.headers["Authorization"] != f"Bearer {token}":
            self._json({"error": "this engine asks for its token"}, 401)
            return False
        return True

    def do_GET(self) -> None:
        routes: dict[str, Any] = {
            "/health": {},
            "/version": {"version": "0.24.0" if self.server.fault == "old_release" else "0.32.0"},
            "/v1/models": {"data": [self.server.served]},
            "/weight_info": {"weight_version": self.server.version},
            "/get_world_size": {"world_size": self.server.world_size},
            "/calls": {"calls": self.server.calls},
        }
        self._json(routes.get(self.path, {}), 200 if self.path in routes else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}") if self._has_body() else {}
        self.server.calls.append({"route": self.path, "body": body, "at": time.monotonic()})
        fault = self.server.fault
        if self.server.at is not None and self.path.startswith(self.server.at):
            if fault == "dies_at":
                os._exit(1)
            if fault == "hangs_at":
                time.sleep(3600)
            return self._failed("the worker failed")
        if self.path == GENERATE:
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
        elif self.path in (
            "/pause?mode=wait",
            "/resume",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
        ):
            self._json({"message": "done"})
        else:
            self._weight_update()
        return None

    def _weight_update(self) -> None:
        """One update at a time, begun and ended, as vLLM's worker has it."""
        active, self.server.updating = self.server.updating, self.path != "/finish_weight_update"
        if self.path == "/start_weight_update" and active:
            return self._failed("start_weight_update called while a weight update is already active.")
        if self.path != "/start_weight_update" and not active:
            return self._failed(f"{self.path} without start_weight_update.")
        return self._json({"message": "done"})

    def _failed(self, why: str) -> None:
        self._json({"error": {"message": f"Call to collective_rpc method failed: {why}"}}, 500)

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
        sampling, prompt = body["sampling_params"], body["token_ids"]
        ids = list(range(3, 3 + sampling["max_tokens"]))
        told = ids[:-1] if fault == "short_logprobs" else ids
        logprobs = {"content": [{"token_id": token, "logprob": -0.5} for token in told]}
        choice = {
            "finish_reason": "abort" if fault == "aborted" else "length",
            "token_ids": ids,
            "logprobs": None if sampling["logprobs"] is None else logprobs,
        }
        return self._json(
            {
                "prompt_token_ids": prompt[:-1] if fault == "other_prompt" else prompt,
                "choices": [{"index": index, **choice} for index in range(sampling["n"])],
            }
        )

    def _has_body(self) -> bool:
        return int(self.headers.get("Content-Length", 0)) > 0

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(body).encode(), status)

    def _send(self, body: bytes, status: int = 200) -> None:
        body = damaged(self.server.fault, self.path, body)
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
    parser.add_argument("--at", help="the route at which it fails, hangs or dies")
    parser.add_argument("--world-size", type=json.loads, default=1)
    parser.add_argument("--model", default="policy")
    parser.add_argument("--max-model-len", type=int, default=64)
    parser.add_argument(
        "--asks", action="store_true", help="for the token in OAR_ENGINE_TOKEN, as oar.rollout.server.guard does"
    )
    parser.add_argument("--updating", action="store_true", help="a weight update was left open")
    with FakeEngine(parser.parse_args()) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()
