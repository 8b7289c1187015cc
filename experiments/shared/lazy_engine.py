"""One engine for a program that may find that all it would ask for is there already."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from oar.common.progress import stage
from oar.config import TrainConfig
from oar.launch.start_model import model_folder
from oar.launch.supervisor import one_engine
from oar.model.load import weights_size
from oar.rollout.client.vllm import EngineClient
from oar.rollout.sync.checkpoint import CheckpointSync, transfer_folder


class StartedEngine(NamedTuple):
    """A server on the starting model, and the ways to it."""

    model: Path
    url: str
    token: str | None
    client: EngineClient
    sync: CheckpointSync


@contextmanager
def engine_when_needed(
    settings: TrainConfig, folder: Path, progress: Progress
) -> Iterator[Callable[[], StartedEngine]]:
    """What starts the engine of `settings` when it is first called; the engine ends with the block, its log is in `folder`."""
    with ExitStack() as running:

        @cache
        def started() -> StartedEngine:
            model = model_folder(settings.model, progress.console.print)
            with stage(progress, "engine: ready"):
                url, token = one_engine(settings, model, folder, running)
            client = EngineClient(url, settings.rollout.request_timeout_s, token)
            parent = None if settings.sync.folder is None else Path(settings.sync.folder)
            between = transfer_folder(folder, parent, weights_size(model, settings.model.dtype))
            return StartedEngine(model, url, token, client, CheckpointSync(client, between))

        yield started
