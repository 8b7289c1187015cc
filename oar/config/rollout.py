"""The groups rollout and sync: the engine, and how weights reach it."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from oar.common.errors import ConfigError
from oar.config.checks import one_of, require


@dataclass
class RolloutConfig:
    """The engine and how completions are drawn from it. `url`: the address of a running server, or a list of several."""

    url: Any
    host: str
    port: int
    servers: int
    tensor_parallel: int
    token_file: str | None
    max_model_len: int
    max_num_seqs: int
    kv_cache_gib: float
    threads: int
    startup_timeout_s: float
    request_timeout_s: float
    restart: bool
    max_restarts: int
    temperature: float
    max_new_tokens: int
    max_staleness: int

    def __post_init__(self) -> None:
        one_or_several = (
            self.url is None or isinstance(self.url, str) or (isinstance(self.url, list) and self.url != [])
        )
        texts = one_or_several and all(isinstance(url, str) for url in self.urls)
        require(texts, "rollout.url", "null, the address of a server or a list of addresses", self.url)
        secret_in_url = any("@" in url for url in self.urls)  # first, since what follows tells the address
        require(
            not secret_in_url, "rollout.url", "without a name or password (see rollout.token_file)", "one with them"
        )
        addresses = all(map(_is_address, self.urls))
        require(addresses, "rollout.url", "the address of a server such as http://127.0.0.1:8000", self.url)
        different = {url.rstrip("/") for url in self.urls}
        require(len(different) == len(self.urls), "rollout.url", "a list without repetition", self.url)
        require(0 <= self.port <= 65535, "rollout.port", "a port number, or 0 for a free one", self.port)
        require(self.servers >= 1, "rollout.servers", "1 or more", self.servers)
        require(self.tensor_parallel >= 1, "rollout.tensor_parallel", "1 or more", self.tensor_parallel)
        require(self.temperature > 0, "rollout.temperature", "above 0 (training needs variety)", self.temperature)
        require(
            0 < self.max_new_tokens < self.max_model_len,
            "rollout.max_new_tokens",
            f"above 0 and below rollout.max_model_len ({self.max_model_len})",
            self.max_new_tokens,
        )
        require(self.max_staleness in (0, 1), "rollout.max_staleness", "0 or 1", self.max_staleness)
        require(self.startup_timeout_s > 0, "rollout.startup_timeout_s", "above 0", self.startup_timeout_s)
        require(self.request_timeout_s > 0, "rollout.request_timeout_s", "above 0", self.request_timeout_s)
        require(not self.restart or self.url is None, "rollout.url", "null where rollout.restart is true", self.url)
        require(self.max_restarts >= 1, "rollout.max_restarts", "1 or more", self.max_restarts)
        require(self.threads >= 1, "rollout.threads", "1 or more", self.threads)
        require(self.max_num_seqs >= 1, "rollout.max_num_seqs", "1 or more", self.max_num_seqs)
        require(self.kv_cache_gib > 0, "rollout.kv_cache_gib", "above 0", self.kv_cache_gib)

    @property
    def urls(self) -> list[str]:
        """The running servers to use; none: start some."""
        return [] if self.url is None else [self.url] if isinstance(self.url, str) else list(self.url)

    @property
    def only_url(self) -> str | None:
        """For programs that speak to one server. Raises ConfigError where several are named."""
        if len(self.urls) > 1:
            raise ConfigError(f"rollout.url must be one address for this program, but is {self.url!r}.")
        return self.urls[0] if self.urls else None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is none, and of brackets
        return False


@dataclass
class SyncConfig:
    """How weights reach the engine, and how far sampler and learner may differ before the run stops."""

    name: str
    folder: str | None
    timeout_s: float
    max_logprob_diff: float

    def __post_init__(self) -> None:
        one_of("sync.name", self.name, ("checkpoint", "nccl", "ipc"))
        require(self.timeout_s > 0, "sync.timeout_s", "above 0", self.timeout_s)
        require(self.max_logprob_diff > 0, "sync.max_logprob_diff", "above 0", self.max_logprob_diff)
