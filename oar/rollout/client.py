"""HTTP to a running engine: token ids in, token ids and the sampler's logprobs out; every answer is checked."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from oar.errors import DataError, EngineError
from oar.rollout.types import Rollout, Sampling
from oar.seeding import derive_seed

UNKNOWN_VERSION = -1  # what the engine holds before the first sync, and while one is under way
_CONNECT_S = 5.0
_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server serves."""

    name: str
    max_model_len: int


class EngineClient:
    """Speaks to one vLLM server; `timeout_s` bounds the wait for each answer. All methods raise EngineError."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._model_info: ModelInfo | None = None

    def health(self) -> bool:
        """Whether the server answers 200 to /health."""
        try:
            return self._send("GET", "/health", timeout=_CONNECT_S).status_code == requests.codes.ok
        except requests.RequestException:
            return False

    def model_info(self) -> ModelInfo:
        """Served name and longest sequence in tokens; asked once."""
        if self._model_info is None:
            models = self._call("GET", "/v1/models").get("data")
            match models:
                case [{"id": str(name), "max_model_len": int(length)}, *_]:
                    self._model_info = ModelInfo(name, length)
                case _:
                    raise EngineError(
                        f"{self.url}/v1/models must name a model with its max_model_len, but says {models!r:.200}."
                    )
        return self._model_info

    def weight_version(self) -> int:
        """The version of the weights the engine holds; `UNKNOWN_VERSION` before the first sync."""
        version = self._call("GET", "/weight_info").get("weight_version")
        if version == "default":  # vLLM's own name for the weights of the folder it was started with
            return UNKNOWN_VERSION
        try:
            return int(str(version))
        except ValueError:
            raise EngineError(
                f"{self.url}/weight_info must give an integer weight_version, but says {version!r}."
            ) from None

    def set_weight_version(self, version: int) -> None:
        """Name the weights that the engine now holds."""
        self._call("POST", "/update_weight_version", {"new_version": str(version)})

    def reload_weights(self, folder: str) -> None:
        """Make every worker load the safetensors in `folder`."""
        self._call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def reset_prefix_cache(self) -> None:
        """Forget all cached keys and values; refused by the engine while it still works on a request."""
        if self._call("POST", "/reset_prefix_cache").get("success") is not True:
            raise EngineError(f"{self.url} did not reset its prefix cache, because requests are still running on it.")

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int, expected_version: int
    ) -> list[list[Rollout]]:
        """Draw `sampling.n` completions for each prompt (token ids); outer list: prompts, inner: completions.

        The same weights, prompts, sampling and seed give the same ids and bit-equal logprobs (on CPU: with rollout.threads=1).
        Raises DataError for a prompt that does not fit, EngineError for a version other than `expected_version` or an answer
        that is not what it must be.
        """
        self._check_prompts(prompts, sampling)
        self._check_version(expected_version)

        def complete(index: int) -> list[Rollout]:
            # One request per prompt, since prompts of one request would share their noise: completion j of a request draws from
            # seed + j. Measured on CPU with one thread: ids and logprobs are bit-equal however the requests arrive (16 x 8 and
            # 200 x 4 completions, 1 to 200 in flight, shuffled). With two threads they are not; why was not
            # measured (products split by batch size would explain it).
            request = {
                "prompt": list(prompts[index]),
                "n": sampling.n,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "seed": derive_seed(seed, index),
                "logprobs": 0,  # of the sampled token only
                "return_token_ids": True,
            }
            body = self._call("POST", "/v1/completions", request)
            return parse_completions(body, prompts[index], sampling, expected_version)

        pool = ThreadPoolExecutor(_IN_FLIGHT)
        try:
            rollouts = list(pool.map(complete, range(len(prompts))))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self._check_version(expected_version)
        return rollouts

    def _check_prompts(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        room = self.model_info().max_model_len - sampling.max_new_tokens
        for index, prompt in enumerate(prompts):
            if not 0 < len(prompt) <= room:
                raise DataError(
                    f"prompt {index} has {len(prompt)} tokens, but must have 1 to {room} to leave room for"
                    f" {sampling.max_new_tokens} new ones; raise rollout.max_model_len or lower rollout.max_new_tokens."
                )

    def _check_version(self, expected: int) -> None:
        version = self.weight_version()
        if version != expected:
            raise EngineError(
                f"expected weight version {expected}, but the engine has {version};"
                " another run is using this server, or a weight sync failed."
            )

    def _send(self, method: str, route: str, **options: Any) -> requests.Response:
        # A connection of its own for each request: a kept one that the server closes just as the next request is sent on it
        # looks like a dead engine, and asking the server to close ("Connection: close") does not take it out of the pool.
        with requests.Session() as session:
            session.trust_env = False  # a proxy has no business between two processes of one machine
            return session.request(method, self.url + route, **options)

    def _call(self, method: str, route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; returns the JSON object that a 200 carries."""
        try:
            response = self._send(method, route, json=body, timeout=(_CONNECT_S, self._timeout_s))
        except requests.Timeout:
            raise EngineError(
                f"the engine at {self.url} did not answer {route} within {self._timeout_s:g} s;"
                " it hangs, or rollout.request_timeout_s is too low."
            ) from None
        except requests.RequestException as error:
            raise EngineError(
                f"the engine at {self.url} is gone: {route} failed with {type(error).__name__}; see its log."
            ) from error
        if response.status_code != requests.codes.ok:
            said = " ".join(response.text.split())[:300].rstrip(".")
            raise EngineError(f"the engine at {self.url} answered {route} with HTTP {response.status_code}: {said}.")
        try:
            answer = response.json()
        except requests.JSONDecodeError:
            raise EngineError(
                f"the engine at {self.url} answered {route} with broken JSON: {response.text[:100]!r}."
            ) from None
        if not isinstance(answer, dict):
            raise EngineError(
                f"the engine at {self.url} answered {route} with {type(answer).__name__} instead of a JSON object."
            )
        return answer


def parse_completions(body: dict[str, Any], prompt: Sequence[int], sampling: Sampling, version: int) -> list[Rollout]:
    """The `sampling.n` completions of one prompt from the body of /v1/completions, in order. Raises EngineError."""
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != sampling.n:
        count = len(choices) if isinstance(choices, list) else "no"
        raise EngineError(f"the engine returned {count} completions for a prompt instead of {sampling.n}.")
    by_index = {choice.get("index"): choice for choice in choices if isinstance(choice, dict)}
    if set(by_index) != set(range(sampling.n)):
        raise EngineError(f"the engine numbered {sampling.n} completions {sorted(map(str, by_index))}.")
    return [_rollout(by_index[i], tuple(prompt), sampling.max_new_tokens, version) for i in range(sampling.n)]


def _rollout(choice: dict[str, Any], prompt: tuple[int, ...], max_new_tokens: int, version: int) -> Rollout:
    if choice.get("prompt_token_ids") != list(prompt):
        raise EngineError(
            "the engine echoed other prompt token ids than it was sent; it may have truncated the prompt."
        )
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    if not isinstance(ids, list) or not ids or any(type(token) is not int or token < 0 for token in ids):
        raise EngineError(f"the engine returned token_ids that are no token ids: {ids!r:.100}.")
    if reason not in ("stop", "length"):
        raise EngineError(f"the engine ended a completion with {reason!r} instead of 'stop' or 'length'.")
    if len(ids) > max_new_tokens or (reason == "length" and len(ids) < max_new_tokens):
        raise EngineError(f"the engine returned {len(ids)} tokens ({reason}) where {max_new_tokens} were the limit.")
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list) or len(values) != len(ids):
        count = len(values) if isinstance(values, list) else "no"
        raise EngineError(f"the engine returned {count} logprobs for {len(ids)} tokens.")
    if not all(isinstance(value, float | int) and math.isfinite(value) for value in values):
        raise EngineError("the engine returned a logprob that is not a finite number; its weights may hold NaN.")
    return Rollout(prompt, tuple(ids), tuple(float(value) for value in values), version, reason)
