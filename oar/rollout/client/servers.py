"""Several servers that hold the same weights, spoken to as one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from oar.common.errors import EngineError
from oar.rollout.client.parallel import together
from oar.rollout.client.vllm import Engine, EngineClient, ModelInfo

Answer = TypeVar("Answer")


def engine_at(urls: Sequence[str], timeout_s: float, token: str | None = None) -> Engine:
    """The engine that the servers at `urls` are together."""
    clients = [EngineClient(url, timeout_s, token) for url in urls]
    return clients[0] if len(clients) == 1 else EngineFleet(clients)


def each(servers: Sequence[EngineClient], ask: Callable[[EngineClient], Answer]) -> list[Answer]:
    """What `ask` gives for each server, all asked at once. The first error is raised, and nobody waits for the rest."""
    return together([partial(ask, server) for server in servers])


class EngineFleet(Engine):
    """Several servers. They need not be alike in their number of GPUs, only serve the same model."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = tuple(clients)

    @property
    def servers(self) -> tuple[EngineClient, ...]:
        """Each of them."""
        return self._clients

    def health(self) -> bool:
        """Whether every server answers 200 to /health."""
        return all(each(self._clients, EngineClient.health))

    def model_info(self) -> ModelInfo:
        """The name that all of them serve, and the longest sequence that fits every one."""
        infos = each(self._clients, EngineClient.model_info)
        names = [info.name for info in infos]
        if len(set(names)) > 1:
            raise EngineError(f"the servers must serve one model, but: {self._told(names)}.")
        return ModelInfo(names[0], min(info.max_model_len for info in infos))

    def weight_version(self) -> int:
        """The version that all of them hold. Raises EngineError where they differ."""
        versions = each(self._clients, EngineClient.weight_version)
        if len(set(versions)) > 1:
            raise EngineError(
                f"the servers hold different weight versions ({self._told(versions)});"
                " another run is using one of them, or a weight sync failed."
            )
        return versions[0]

    def _told(self, answers: Sequence[object]) -> str:
        return ", ".join(f"{client.url} {answer}" for client, answer in zip(self._clients, answers, strict=True))
