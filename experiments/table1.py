"""Table 1, cell by cell: `python -m experiments.table1 seeds=3`. Finished cells are kept, so it can be interrupted."""

import json
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import hydra
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oar.cli import explain_errors
from oar.config import Table1Config, TrainConfig, validated
from oar.errors import OarError
from oar.models import model_folder
from oar.processes import ChildProcess
from oar.provenance import command, config_hash
from oar.reports.table1 import BASE, Cell, write_table1
from oar.rollout.engine import VllmEngine
from oar.supervisor import engine_options, terminable

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """A cell to be run: its folder, its settings and the overrides that make them."""

    method: str
    seed: int
    folder: Path
    overrides: list[str]
    settings: TrainConfig

    def provenance(self) -> dict[str, Any] | None:
        """Where the cell's numbers come from; None where it is not finished, or finished under other settings."""
        evaluation = self.folder / "evaluation.json"
        if not evaluation.exists():
            return None
        found: dict[str, Any] = json.loads(evaluation.read_text())["provenance"]
        wanted = {
            "step": self.settings.learner.steps,
            "identity": self.settings.identity(),
            "measure": self.settings.measure(),
        }
        return found if {key: found.get(key) for key in wanted} == wanted else None

    def steps_done(self) -> int:
        """Training steps logged so far."""
        metrics = self.folder / "metrics.jsonl"
        return max(0, metrics.read_bytes().count(b"\n") - 1) if metrics.exists() else 0


@hydra.main(version_base=None, config_path="../conf", config_name="table1")
def main(config: DictConfig) -> None:
    """Plan the cells, start one engine, run what is missing, write the table."""
    with explain_errors():
        cfg = validated(config, Table1Config)
        folder = Path(HydraConfig.get().runtime.output_dir)
        jobs = plan(cfg, folder)
        run_missing(jobs, folder, cfg.lanes)
        cells = [cell(job) for job in jobs]
        write_table1(cells, folder, reference=REFERENCE, provenance=table_provenance(jobs, cfg.lanes))
        print((folder / "table1.md").read_text())
        print(f"written to {folder}: table1.csv, claims.csv, table1.md, table1.png, curves.png, provenance.json")


def plan(cfg: Table1Config, folder: Path) -> list[Job]:
    """Every cell, base model first, validated before any of them starts."""
    jobs = []
    for seed in range(1, cfg.seeds + 1):
        for name in (BASE, *cfg.methods):
            # The table's own settings come last, so that no override of the user's can turn a cell into another one.
            overrides = [*cfg.overrides, f"profile={cfg.profile}", f"seed={seed}"]
            overrides += [f"method={'grpo' if name == BASE else name}"]
            steps = 0 if name == BASE else cfg.steps
            overrides += [] if steps is None else [f"learner.steps={steps}"]
            settings = validated(compose("train", overrides), TrainConfig)
            jobs.append(Job(name, seed, folder / "cells" / f"{name}-seed{seed}", overrides, settings))
    return jobs


def run_missing(jobs: list[Job], folder: Path, lanes: int) -> None:
    """Run the cells that are not finished, `lanes` at a time; each lane keeps one engine for all of its cells."""
    missing = [job for job in jobs if job.provenance() is None]
    if not missing:
        return
    cfg, lanes = missing[0].settings, min(lanes, len(missing))
    model = model_folder(cfg.model, print)
    with ExitStack() as running:
        running.enter_context(terminable())
        print(f"{len(missing)} of {len(jobs)} cells to run; starting {lanes} engine(s) ...", flush=True)
        engines: Queue[VllmEngine] = Queue()
        for lane in range(lanes):
            options = engine_options(cfg.rollout, cfg.model, model, folder / "cells" / f"engine{lane + 1}")
            engines.put(running.enter_context(VllmEngine(options)))
        stop = Event()
        pool = running.enter_context(ThreadPoolExecutor(lanes))
        running.callback(stop.set)  # leaves before the pool does: its threads then end their cells at once
        progress = running.enter_context(_progress())
        total = progress.add_task("all cells", total=sum(job.settings.learner.steps for job in jobs))
        pending = {pool.submit(run_cell, job, engines, stop, progress) for job in missing}
        while pending:
            finished, pending = wait(pending, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for cell in finished:
                cell.result()  # raises what ended the cell
            progress.update(total, completed=sum(job.steps_done() for job in jobs))


def run_cell(job: Job, engines: Queue[VllmEngine], stop: Event, progress: Progress) -> None:
    """Train and evaluate one cell on the next free engine. Raises OarError where either fails."""
    engine = engines.get()
    try:
        if not stop.is_set():
            _run_cell_on(engine, job, stop, progress)
    finally:
        engines.put(engine)


def _run_cell_on(engine: VllmEngine, job: Job, stop: Event, progress: Progress) -> None:
    log, started = job.folder / "log.txt", time.monotonic()
    bar = progress.add_task(job.folder.name, total=job.settings.learner.steps)
    command = [sys.executable, "-m", "experiments.train", *job.overrides, "resume=auto"]
    # Relative, so that what a cell records of itself names no folder of this machine above the one it was started in.
    command += [f"output_dir='{os.path.relpath(job.folder)}'", f"rollout.url={engine.url}"]
    with ChildProcess(command, log_path=log) as process:
        while not stop.is_set() and (code := process.poll()) is None:
            progress.update(bar, completed=job.steps_done())
            time.sleep(POLL_S)
        if stop.is_set():
            return
        if code != 0:
            state = "" if engine.poll() is None else f" The engine ended as well: {engine.tail(5)}"
            raise OarError(
                f"The cell {job.folder.name} ended with exit code {code}; run the same command again to go on from its "
                f"last checkpoint. The end of {log}:\n{process.tail(5)}{state}"
            )
    progress.remove_task(bar)
    progress.console.print(f"{job.folder.name}: finished in {time.monotonic() - started:.0f} s", highlight=False)


def _progress() -> Progress:
    steps = TextColumn("{task.completed}/{task.total} steps")
    # Drawn once a second: the default of ten costs a seventh of a core, which the cells need.
    return Progress(TextColumn("{task.description}"), BarColumn(), steps, TimeElapsedColumn(), refresh_per_second=1)


def cell(job: Job) -> Cell:
    """A finished cell as the report reads it."""
    trained, provenance = job.method != BASE, job.provenance()
    assert provenance is not None
    return Cell(
        profile=job.settings.profile,
        method=job.method,
        seed=job.seed,
        evaluation=job.folder / "evaluation.csv",
        metrics=job.folder / "metrics.jsonl" if trained else None,
        timings=job.folder / "timings.jsonl" if trained else None,
        seconds=provenance["seconds"],
    )


def table_provenance(jobs: list[Job], lanes: int) -> dict[str, Any]:
    """What the cells say of themselves, put together: the table may be written long after some of them ran."""
    found = [provenance for job in jobs if (provenance := job.provenance()) is not None]
    shared = {
        key: found[0][key] if all(one[key] == found[0][key] for one in found) else [one[key] for one in found]
        for key in ("git_commit", "git_dirty", "versions", "platform", "cpu", "cores", "gpu")
    }
    return {
        "config_hash": config_hash({"cells": [[one["identity"], one["measure"], one["step"]] for one in found]}),
        "command": command(),
        **shared,
        "learner_steps": jobs[-1].settings.learner.steps,
        "lanes": lanes,
        "started": min(one["started"] for one in found),
        "finished": max(one["finished"] for one in found),
    }


if __name__ == "__main__":
    main()
