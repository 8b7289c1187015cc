"""Many short runs one after the other in this process, on servers that they share: a program takes longer to start than a run."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

from omegaconf import OmegaConf

from oar.command_line.exit_codes import terminable
from oar.common.errors import ConfigError
from oar.common.files import write_text_atomic
from oar.launch.pool import Job, Servers, refuse_as_served
from oar.launch.start_model import model_folder
from oar.launch.supervisor import locked, refuse_without_gpus
from oar.learner.run import run_training
from oar.model.load import weights_size
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.sync.checkpoint import transfer_folder


def run_in_turn(jobs: Sequence[Job], folder: Path) -> None:
    """Run the jobs that are not finished; their servers log to `folder`. The first that fails ends the rest.

    Run again, only those are run that have not finished, from their last checkpoints. Raises what the learner raises.
    """
    missing = [job for job in jobs if job.provenance() is None]
    for job in missing:
        refuse_as_served(job.settings.rollout, 1)
        refuse_without_gpus(job.settings)
        if job.settings.learner.ranks > 1 or job.settings.sync.name != "checkpoint":
            raise ConfigError("learner.ranks must be 1 and sync.name checkpoint where runs share a process.")
    servers = Servers(folder / "servers1")
    with ExitStack() as running:
        running.enter_context(terminable())
        running.callback(servers.fleet.stop)
        for number, job in enumerate(missing, start=1):
            print(f"run {number} of {len(missing)}: {job.condition} {job.arm}, {job.folder.name}", flush=True)
            _run(job, servers)


def _run(job: Job, servers: Servers) -> None:
    cfg = job.settings
    engine, start_model = servers.serving(cfg, print), model_folder(cfg.model, print)
    parent = None if cfg.sync.folder is None else Path(cfg.sync.folder)
    with locked(job.folder), (job.folder / "log.txt").open("a") as log:
        between = transfer_folder(job.folder, parent, weights_size(start_model, cfg.model.dtype))
        write_text_atomic(job.folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(cfg)))
        with redirect_stdout(log), _shown(engine.token):
            run_training(cfg, job.folder, start_model, engine.urls, between)


@contextmanager
def _shown(token: str) -> Iterator[None]:
    """The token of the servers where clients of this process look for it; it is gone before other servers are started."""
    before = os.environ.get(TOKEN_VARIABLE)
    os.environ[TOKEN_VARIABLE] = token
    try:
        yield
    finally:
        del os.environ[TOKEN_VARIABLE]
        if before is not None:
            os.environ[TOKEN_VARIABLE] = before
