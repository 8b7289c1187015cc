"""Many runs of experiments/train.py on one machine: several at a time, on servers that the runs share."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Event, Lock
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oar.command_line.exit_codes import terminable
from oar.command_line.overrides import own_configuration, quoted
from oar.common.errors import ConfigError, OarError
from oar.common.processes import ChildProcess
from oar.common.provenance import joined_provenance
from oar.config import RolloutConfig, TrainConfig
from oar.launch.start_model import model_folder
from oar.launch.supervisor import refuse_without_gpus, server_options
from oar.learner.credit import Method
from oar.plan.work import Lengths, importance_work
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.server.fleet import KeptFleet, VllmFleet
from oar.runs.folder import finished

POLL_S = 1.0
USUAL = Lengths(prompt=50, reasoning=50, marker=1, answer=2)


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be made: its folder, its settings and the overrides of conf/train that make them.

    `arm`, `condition`: where it stands in a comparison.
    """

    folder: Path
    overrides: list[str]
    settings: TrainConfig
    arm: str = ""
    condition: str = ""

    def provenance(self) -> dict[str, Any] | None:
        """Where the run's numbers come from; None where it is not finished, or finished under other settings."""
        return finished(self.folder, self.settings)

    def steps_done(self) -> int:
        """Training steps logged so far."""
        metrics = self.folder / "metrics.jsonl"
        return max(0, metrics.read_bytes().count(b"\n") - 1) if metrics.exists() else 0


def run_missing(jobs: Sequence[Job], folder: Path, parallel_runs: int) -> None:
    """Run the jobs that are not finished, `parallel_runs` at a time. Their servers log to folders in `folder`.

    The longest are begun first: the last to end runs alone, and should not do so for long.
    A job that fails does not end the others. Raises OarError after the last, naming those that failed and why; run again, only
    these are run, from their last checkpoints.
    """
    missing = sorted((job for job in jobs if job.provenance() is None), key=reckoned_tokens, reverse=True)
    if not missing:
        return
    parallel_runs = min(parallel_runs, len(missing))
    for job in missing:
        refuse_as_served(job.settings.rollout, parallel_runs)
        refuse_without_gpus(job.settings)
    if parallel_runs > 1 and torch.cuda.is_available():
        for job in missing:
            refuse_several_gpus(job.settings, parallel_runs)
    failed: list[OarError] = []
    with ExitStack() as running:
        running.enter_context(terminable())
        print(f"{len(missing)} of {len(jobs)} runs to do, {parallel_runs} at a time", flush=True)
        every = [Servers(folder / f"servers{number + 1}") for number in range(parallel_runs)]
        free: Queue[Servers] = Queue()
        for servers in every:
            running.callback(servers.fleet.stop)
            free.put(servers)
        stop = Event()
        pool = running.enter_context(ThreadPoolExecutor(parallel_runs))
        # These leave before the pool does: its threads then end their runs at once, and wait for no server that is starting.
        for servers in every:
            running.callback(servers.fleet.give_up_starting)
        running.callback(stop.set)
        progress = running.enter_context(_progress())
        total = progress.add_task("all runs", total=sum(job.settings.learner.steps for job in jobs))
        pending = {pool.submit(run_job, job, free, stop, progress) for job in missing}
        while pending:
            done, pending = wait(pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for one in done:
                error = one.exception()
                if isinstance(error, OarError):
                    progress.console.print(str(error), highlight=False, markup=False)
                    failed.append(error)
                elif error is not None:
                    raise error
            progress.update(total, completed=sum(job.steps_done() for job in jobs))
    if failed:
        raise OarError(
            f"{len(failed)} of {len(missing)} runs failed; run the same command again to go on with them from their last "
            f"checkpoints. The first: {failed[0]}"
        )


def refuse_as_served(rollout: RolloutConfig, parallel_runs: int) -> None:
    """Raises ConfigError for what cannot be where runs get servers that they share."""
    if rollout.urls:
        raise ConfigError("rollout.url must be left out here: servers are started for these runs.")
    if rollout.restart:
        raise ConfigError("rollout.restart must be false here: these runs share their servers, and none may end them.")
    if rollout.port != 0 and parallel_runs > 1:
        raise ConfigError(
            f"rollout.port must be 0 where {parallel_runs} runs go on at a time, each with servers of its own, but is "
            f"{rollout.port}."
        )


def refuse_several_gpus(cfg: TrainConfig, parallel_runs: int) -> None:
    """Raises ConfigError where a run takes several GPUs: others beside it would take the same. Small ones can share one."""
    learner, rollout = cfg.learner, cfg.rollout
    if max(learner.ranks, rollout.servers * rollout.tensor_parallel) > 1:
        raise ConfigError(
            f"parallel_runs must be 1 where a run takes several GPUs (learner.ranks={learner.ranks}, rollout.servers="
            f"{rollout.servers} of {rollout.tensor_parallel} each), since the others would take the same, but is {parallel_runs}."
        )


def reckoned_tokens(job: Job) -> float:
    """Tokens that the learner runs in a whole job. Lengths are made up: it is for telling long jobs from short ones."""
    learner, signal = job.settings.learner, Method.built(job.settings).signal
    update = 3 * USUAL.completion  # a backward is two forwards
    return learner.steps * learner.batch_size * (update + importance_work(signal, USUAL, learner).tokens)


@dataclass
class Servers:
    """The servers that one job after the other is run on."""

    folder: Path  # of their logs
    fleet: KeptFleet = field(default_factory=KeptFleet)

    def serving(self, settings: TrainConfig, progress: Callable[[str], None]) -> VllmFleet:
        """Servers on the model that the job starts from, which is taught where it is not there yet."""
        with _TEACHING:
            model = model_folder(settings.model, progress)
        ranks = settings.learner.ranks
        options = server_options(
            settings.rollout, settings.model, model, self.folder, sync=settings.sync, learner_gpus=ranks
        )
        return self.fleet.fitting(options)


_TEACHING = Lock()  # two runs must not teach one model twice


def run_job(job: Job, free: "Queue[Servers]", stop: Event, progress: Progress) -> None:
    """Train and evaluate one job on the next free servers. Raises OarError where either fails."""
    servers = free.get()
    try:
        if not stop.is_set():
            _run_on(servers, job, stop, progress)
    finally:
        free.put(servers)


def _run_on(servers: Servers, job: Job, stop: Event, progress: Progress) -> None:
    def tell(message: str) -> None:
        if stop.is_set():  # Ctrl-C does not reach this thread, and teaching takes minutes
            raise OarError("The base model was not taught to the end: the runs were interrupted.")
        print(message, flush=True)

    engine = servers.serving(job.settings, tell)
    log, started = job.folder / "log.txt", time.monotonic()
    bar = progress.add_task(job.folder.name, total=job.settings.learner.steps)
    arguments = [sys.executable, "-m", "experiments.train", *own_configuration(), *job.overrides, "resume=auto"]
    # Relative, so that what a run records of itself names no folder of this machine above the one it was started in.
    arguments += [f"output_dir={quoted(os.path.relpath(job.folder))}", f"rollout.url=[{','.join(engine.urls)}]"]
    try:
        with ChildProcess(arguments, log_path=log, env={TOKEN_VARIABLE: engine.token}) as process:
            while not stop.is_set() and (code := process.poll()) is None:
                progress.update(bar, completed=job.steps_done())
                time.sleep(POLL_S)
            if stop.is_set():
                return
            if code != 0:
                state = "" if engine.poll() is None else f" Its server ended as well: {engine.tail(5)}"
                servers.fleet.stop()  # what state the failed run has left them in, nobody knows
                raise OarError(
                    f"{job.folder.name} ended with exit code {code}. The end of {log}:\n{process.tail(5)}{state}"
                )
    finally:
        progress.remove_task(bar)
    progress.console.print(f"{job.folder.name}: finished in {time.monotonic() - started:.0f} s", highlight=False)


def _progress() -> Progress:
    steps = TextColumn("{task.completed}/{task.total} steps")
    # Drawn once a second: the default of ten costs a seventh of a core, which the runs need.
    return Progress(TextColumn("{task.description}"), BarColumn(), steps, TimeElapsedColumn(), refresh_per_second=1)


def joint_provenance(jobs: Sequence[Job], parallel_runs: int) -> dict[str, Any]:
    """Of finished jobs, as `oar.common.provenance.joined_provenance`, with their length and how many ran at a time."""
    found = [provenance for job in jobs if (provenance := job.provenance()) is not None]
    return joined_provenance(found) | {"learner_steps": jobs[-1].settings.learner.steps, "parallel_runs": parallel_runs}
