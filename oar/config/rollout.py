"""The groups rollout and sync: the engine, and how weights reach it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from oar.config.checks import one_of, require


@dataclass
class RolloutConfig:
    """The engine and how completions are drawn from it."""

    url: str | None
    host: str
    port: int
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

    def __post_init__(self) -> None:
        secret_in_url = self.url is not None and urlsplit(self.url).username is not None
        require(
            not secret_in_url, "rollout.url", "without a name or password (see rollout.token_file)", "one with them"
        )
        require(0 <= self.port <= 65535, "rollout.port", "a port number, or 0 for a free one", self.port)
        require(self.temperature > 0, "rollout.temperature", "above 0 (training needs variety)", self.temperature)
        require(
            0 < self.max_new_tokens < self.max_model_len,
            "rollout.max_new_tokens",
            f"above 0 and below rollout.max_model_len ({self.max_model_len})",
            self.max_new_tokens,
        )
        require(self.startup_timeout_s > 0, "rollout.startup_timeout_s", "above 0", self.startup_timeout_s)
        require(self.request_timeout_s > 0, "rollout.request_timeout_s", "above 0", self.request_timeout_s)
        require(not self.restart or self.url is None, "rollout.url", "null where rollout.restart is true", self.url)
        require(self.max_restarts >= 1, "rollout.max_restarts", "1 or more", self.max_restarts)
        require(self.threads >= 1, "rollout.threads", "1 or more", self.threads)
        require(self.max_num_seqs >= 1, "rollout.max_num_seqs", "1 or more", self.max_num_seqs)
        require(self.kv_cache_gib > 0, "rollout.kv_cache_gib", "above 0", self.kv_cache_gib)


@dataclass
class SyncConfig:
    """How weights reach the engine, and how far sampler and learner may differ before the run stops."""

    name: str
    folder: str | None
    max_logprob_diff: float

    def __post_init__(self) -> None:
        one_of("sync.name", self.name, ("checkpoint",))
        require(self.max_logprob_diff > 0, "sync.max_logprob_diff", "above 0", self.max_logprob_diff)
