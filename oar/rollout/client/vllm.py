"""HTTP to a running engine: token ids in, token ids and the sampler's logprobs out; every answer is checked."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oar.common.errors import DataError, EngineError
from oar.common.seeding import derive_seed
from oar.config.evaluation import Sampling
from oar.rollout.client.http import HttpServer
from oar.rollout.client.parallel import IN_FLIGHT, in_parallel
from oar.rollout.types import Rollout

GENERATE = "/inference/v1/generate"  # token ids in, token ids out; nothing is made text on the way
UNKNOWN_VERSION = -1  # what the engine holds before the first sync, and while one is under way


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server serves."""

    name: str
    max_model_len: int


class Engine(ABC):
    """Servers that hold the same weights, spoken to as one: `EngineClient` is one server, `EngineFleet` several.

    Prompts are spread over the servers by their position, so that seeds and (on CPU) results do not depend on how many there
    are. All methods raise EngineError.
    """

    @property
    @abstractmethod
    def servers(self) -> tuple["EngineClient", ...]:
        """Each of them."""

    @abstractmethod
    def health(self) -> bool:
        """Whether every server answers 200 to /health."""

    @abstractmethod
    def model_info(self) -> ModelInfo:
        """Served name and longest sequence in tokens."""

    @abstractmethod
    def weight_version(self) -> int:
        """The version of the weights the servers hold; `UNKNOWN_VERSION` before the first sync."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        *,
        seed: int,
        expected_version: int,
    ) -> list[list[Rollout]]:
        """Draw `sampling.n` completions for each prompt (token ids); outer list: prompts, inner: completions.

        `sampling`: of all prompts, or one for each.

        The same weights, prompts, sampling and seed give the same ids and bit-equal logprobs (on CPU: with rollout.threads=1).
        Raises DataError for a prompt that does not fit, EngineError for a version other than `expected_version` or an answer
        that is not what it must be.
        """
        seeds = [derive_seed(seed, index) for index in range(len(prompts))]
        drawn = dict(self.stream(prompts, sampling, seeds=seeds, expected_version=expected_version))
        return [drawn[index] for index in range(len(prompts))]

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        *,
        seeds: Sequence[int],
        expected_version: int,
        logprobs: bool = True,
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """Like `generate`, each prompt's completions as soon as they are there, with its position; a seed for each prompt.

        Without `logprobs` the rollouts have none: only training reads them.
        """
        samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
        self._check_prompts(prompts, samplings)
        self._check_version(expected_version)
        servers = self.servers

        def complete(index: int) -> list[Rollout]:
            server = servers[index % len(servers)]
            asked = prompts[index], samplings[index]
            return server.complete(*asked, seed=seeds[index], version=expected_version, logprobs=logprobs)

        yield from in_parallel(complete, len(prompts), IN_FLIGHT * len(servers))
        self._check_version(expected_version)

    def _check_prompts(self, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling]) -> None:
        longest = self.model_info().max_model_len
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            room = longest - sampling.max_new_tokens
            if not 0 < len(prompt) <= room:
                raise DataError(
                    f"prompt {index} has {len(prompt)} tokens, but must have 1 to {room} to leave room for"
                    f" {sampling.max_new_tokens} new ones; raise rollout.max_model_len, or lower rollout.max_new_tokens or"
                    " evaluation.max_new_tokens."
                )

    def _check_version(self, expected: int) -> None:
        version = self.weight_version()
        if version != expected:
            raise EngineError(
                f"expected weight version {expected}, but the engine has {version};"
                " another run is using this server, or a weight sync failed."
            )


class EngineClient(Engine):
    """Speaks to one vLLM server; `timeout_s` and `token` as in `HttpServer`. All methods raise EngineError."""

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self._server = HttpServer(url, timeout_s, token)
        self.url = self._server.url
        self._model_info: ModelInfo | None = None

    @property
    def servers(self) -> tuple["EngineClient", ...]:
        """This one."""
        return (self,)

    def health(self) -> bool:
        """Whether the server answers 200 to /health."""
        return self._server.answers("/health")

    def model_info(self) -> ModelInfo:
        """Served name and longest sequence in tokens; asked once."""
        if self._model_info is None:
            models = self._server.call("GET", "/v1/models").get("data")
            match models:
                case [{"id": str(name), "max_model_len": int(length)}, *_]:
                    self._model_info = ModelInfo(name, length)
                case _:
                    raise EngineError(
                        f"{self.url}/v1/models must name a model with its max_model_len, but says {models!r:.200}."
                    )
        return self._model_info

    def release(self) -> str:
        """The release of vLLM that serves."""
        return str(self._server.call("GET", "/version").get("version"))

    def weight_version(self) -> int:
        """The version of the weights the engine holds; `UNKNOWN_VERSION` before the first sync."""
        version = self._server.call("GET", "/weight_info").get("weight_version")
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
        self._server.call("POST", "/update_weight_version", {"new_version": str(version)})

    def pause(self) -> None:
        """Let what is running end, and start nothing more until `resume`."""
        self._server.call("POST", "/pause?mode=wait")

    def resume(self) -> None:
        """Work on requests again."""
        self._server.call("POST", "/resume")

    def reload_weights(self, folder: str) -> None:
        """Make every worker load the safetensors in `folder`."""
        self._server.call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def reset_prefix_cache(self) -> None:
        """Forget all cached keys and values; refused by the engine while it still works on a request."""
        if self._server.call("POST", "/reset_prefix_cache").get("success") is not True:
            raise EngineError(f"{self.url} did not reset its prefix cache, because requests are still running on it.")

    def world_size(self) -> int:
        """How many workers hold the model: tensor x pipeline x data parallel."""
        size = self._server.call("GET", "/get_world_size").get("world_size")
        if type(size) is not int or size < 1:
            raise EngineError(f"{self.url}/get_world_size must give a number of workers, but says {size!r}.")
        return size

    def init_weight_transfer(self, info: dict[str, Any]) -> None:
        """Prepare every worker to receive weights; `info` is what its transfer backend asks for."""
        self._server.call("POST", "/init_weight_transfer_engine", {"init_info": info})

    def start_weight_update(self) -> None:
        """Begin to take in new weights: until `finish_weight_update` the model is in pieces, and must not run."""
        self._server.call("POST", "/start_weight_update")

    def update_weights(self, info: dict[str, Any]) -> None:
        """Make every worker receive the weights that `info` describes; answered when they are there."""
        self._server.call("POST", "/update_weights", {"update_info": info})

    def finish_weight_update(self) -> None:
        """Put the model together from the weights received."""
        self._server.call("POST", "/finish_weight_update")

    def shutdown_weight_transfer(self) -> None:
        """Make every worker give up what `init_weight_transfer` opened."""
        self._server.call("POST", "/shutdown_weight_transfer_engine")

    def complete(
        self, prompt: Sequence[int], sampling: Sampling, *, seed: int, version: int, logprobs: bool = True
    ) -> list[Rollout]:
        """`sampling.n` completions of one prompt, which are taken to be of weight version `version`."""
        # One request per prompt, since prompts of one request would share their noise: completion j of a request draws from
        # seed + j. Measured on CPU with one thread: ids and logprobs are bit-equal however the requests arrive (16 x 8 and
        # 200 x 4 completions, 1 to 200 in flight, shuffled). With two threads they are not; why was not
        # measured (products split by batch size would explain it).
        request = {
            "token_ids": list(prompt),
            "return_token_ids": True,  # of the prompt, as the engine took it
            "sampling_params": {
                "n": sampling.n,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "seed": seed,
                "stop": list(sampling.stop),
                "stop_token_ids": list(sampling.stop_token_ids),
                "detokenize": bool(sampling.stop),  # text is for strings that end a completion, and for nothing else
                "logprobs": 0 if logprobs else None,  # of the sampled token only
            },
        }
        body = self._server.call("POST", GENERATE, request)
        return parse_completions(body, prompt, sampling, version, logprobs=logprobs)


def parse_completions(
    body: dict[str, Any], prompt: Sequence[int], sampling: Sampling, version: int, *, logprobs: bool = True
) -> list[Rollout]:
    """The `sampling.n` completions of one prompt from the body of /inference/v1/generate, in order. Raises EngineError.

    Without `logprobs` none were asked for.
    """
    choices = numbered_choices(body, sampling.n)
    if body.get("prompt_token_ids") != list(prompt):
        raise EngineError(
            "the engine echoed other prompt token ids than it was sent; it may have truncated the prompt."
        )
    completions = []
    for choice in choices:
        ids = _token_ids(choice, sampling.max_new_tokens)
        told = _logprobs(choice, ids) if logprobs else ()
        completions.append(Rollout(tuple(prompt), tuple(ids), told, version, choice["finish_reason"]))
    return completions


def numbered_choices(body: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """The `n` choices of an answer in the order of their index, each ended by itself or by the limit.

    Raises EngineError for any other number, or another end.
    """
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != n:
        count = len(choices) if isinstance(choices, list) else "no"
        raise EngineError(f"the engine returned {count} completions for a prompt instead of {n}.")
    by_index = {choice.get("index"): choice for choice in choices if isinstance(choice, dict)}
    if set(by_index) != set(range(n)):
        raise EngineError(f"the engine numbered {n} completions {sorted(map(str, by_index))}.")
    for choice in by_index.values():
        if choice.get("finish_reason") not in ("stop", "length"):
            raise EngineError(
                f"the engine ended a completion with {choice.get('finish_reason')!r} instead of 'stop' or 'length'."
            )
    return [by_index[index] for index in range(n)]


def _token_ids(choice: dict[str, Any], max_new_tokens: int) -> list[int]:
    ids, reason = choice.get("token_ids"), choice["finish_reason"]
    if not isinstance(ids, list) or not ids or any(type(token) is not int or token < 0 for token in ids):
        raise EngineError(f"the engine returned token_ids that are no token ids: {ids!r:.100}.")
    if len(ids) > max_new_tokens or (reason == "length" and len(ids) < max_new_tokens):
        raise EngineError(f"the engine returned {len(ids)} tokens ({reason}) where {max_new_tokens} were the limit.")
    return ids


def _logprobs(choice: dict[str, Any], ids: list[int]) -> tuple[float, ...]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or [one.get("token_id") for one in content if isinstance(one, dict)] != ids:
        count = len(content) if isinstance(content, list) else "no"
        raise EngineError(f"the engine returned {count} logprobs for {len(ids)} tokens, or of other tokens.")
    values = [one.get("logprob") for one in content]
    if not all(isinstance(value, float | int) and math.isfinite(value) for value in values):
        raise EngineError("the engine returned a logprob that is not a finite number; its weights may hold NaN.")
    return tuple(float(value) for value in values)
