"""What every way of bringing weights to the engine does around the transfer itself."""

import contextlib
from collections.abc import Iterator, Sequence

from oar.common.errors import EngineError, EngineLostError, SyncError
from oar.rollout.client.servers import each
from oar.rollout.client.vllm import UNKNOWN_VERSION, EngineClient


@contextlib.contextmanager
def weight_update(servers: Sequence[EngineClient], version: int) -> Iterator[None]:
    """Around the transfer itself: pause, the transfer, prefix-cache reset, resume, and the version last, when all have it.

    While it is under way the version is unknown, so that what a failure leaves cannot be mistaken for the weights of before.
    A server that holds some of the new weights must not run, so after a failure all stay paused until a push succeeds.
    Raises SyncError, or EngineLostError where a server is gone or hangs.
    """
    try:
        each(servers, lambda server: server.set_weight_version(UNKNOWN_VERSION))
        each(servers, EngineClient.pause)
        yield
        each(servers, EngineClient.reset_prefix_cache)
        each(servers, EngineClient.resume)
        each(servers, lambda server: server.set_weight_version(version))
        held = each(servers, EngineClient.weight_version)
    except EngineError as error:
        # A run may go on with another engine in the place of one that is lost (rollout.restart).
        kind = EngineLostError if isinstance(error, EngineLostError) else SyncError
        raise kind(
            f"weight version {version} did not reach the engine: {error}"
            " Check the engine's log, and that it was started with VLLM_SERVER_DEV_MODE=1."
        ) from error
    for server, came in zip(servers, held, strict=True):
        if came != version:
            raise SyncError(
                f"the engine at {server.url} reports weight version {came} after being given {version};"
                " another run is using this server."
            )


def start_weight_update(server: EngineClient) -> None:
    """Begin an update, after ending one that was left open, by a push that failed or a learner that was killed."""
    try:
        server.start_weight_update()
    except EngineError as error:
        if "already active" not in str(error):
            raise
        server.finish_weight_update()
        server.start_weight_update()
