"""HTTP to any server with OpenAI's /v1/completions: text in, text out. For evaluation alone; training needs token ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oar.common.errors import EngineError
from oar.config.evaluation import Sampling
from oar.rollout.client.http import HttpServer
from oar.rollout.client.parallel import in_parallel
from oar.rollout.client.vllm import numbered_choices

SEEDS = 2**31  # what every server takes; vLLM takes 63 bits
STOPS_ON_IDS = (
    "vllm",
    "sglang",
)  # servers that take `stop_token_ids`, as they call themselves; others refuse unknown keys


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """One completion as the server wrote it; `finish_reason` is "stop" (it ended by itself) or "length"."""

    text: str
    finish_reason: str


class OpenAIClient:
    """Speaks to one server; `timeout_s` and `token` as in `HttpServer`. All methods raise EngineError."""

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self._server = HttpServer(url, timeout_s, token)
        self.url = self._server.url
        self._served: tuple[str, bool] | None = None

    def model(self) -> str:
        """The name of the first model that the server lists; asked once."""
        return self._ask()[0]

    def stops_on_ids(self) -> bool:
        """Whether the server can be told token ids that end a completion; any other ends at its own EOS and at strings."""
        return self._ask()[1]

    def _ask(self) -> tuple[str, bool]:
        if self._served is None:
            match self._server.call("GET", "/v1/models").get("data"):
                case [{"id": str(name), **more}, *_]:
                    self._served = name, more.get("owned_by") in STOPS_ON_IDS
                case models:
                    raise EngineError(f"{self.url}/v1/models must name a model, but says {models!r:.200}.")
        return self._served

    def stream(
        self, prompts: Sequence[str], samplings: Sequence[Sampling], *, seeds: Sequence[int]
    ) -> Iterator[tuple[int, list[TextCompletion]]]:
        """The completions of each prompt as soon as they are there, with its position; a sampling and a seed for each prompt.

        Whether the same seed gives the same completions is the server's affair.
        """
        model = self.model()
        stops_on_ids = self.stops_on_ids()

        def complete(index: int) -> list[TextCompletion]:
            sampling = samplings[index]
            ids = {"stop_token_ids": list(sampling.stop_token_ids)} if stops_on_ids else {}
            request = {
                "model": model,
                "prompt": prompts[index],
                "n": sampling.n,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "stop": list(sampling.stop),
                "seed": seeds[index] % SEEDS,
            } | ids
            choices = numbered_choices(self._server.call("POST", "/v1/completions", request), sampling.n)
            if not all(isinstance(choice.get("text"), str) for choice in choices):
                raise EngineError(f"the engine at {self.url} returned a completion without text.")
            return [TextCompletion(choice["text"], choice["finish_reason"]) for choice in choices]

        yield from in_parallel(complete, len(prompts))
