"""Starts the engine and the learner, watches both, and leaves neither behind."""

import fcntl
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omegaconf import OmegaConf

from oar.config import ModelConfig, RolloutConfig, TrainConfig, build
from oar.errors import ConfigError, EngineError
from oar.files import write_text_atomic
from oar.learner.checkpoint import resumable_checkpoint
from oar.learner.launch import learner_command
from oar.models import model_folder
from oar.processes import ChildProcess
from oar.rollout.access import engine_token
from oar.rollout.engine import EngineOptions, VllmEngine, telling_lines
from oar.rollout.sync import transfer_folder
from oar.tasks.sources import DatasetSource, load_benchmarks, refuse_contaminated, refuse_unreadable
from oar.tasks.template import load_template
from oar.tracking import check_tracking

POLL_S = 0.2
NOTICE_S = 2.0


def train(cfg: TrainConfig, folder: Path) -> int:
    """Run one training in `folder`; returns the exit code.

    Everything that can be refused is refused before the first process starts. Raises ConfigError for that, EngineError
    when the engine cannot start or dies.
    """
    check_tracking(cfg.tracking.mode)  # type: ignore[arg-type]  # validated
    build("method.estimator", cfg.method.estimator)
    source = build("data.source", cfg.data.source)
    if cfg.resume == "never" and ((folder / "metrics.jsonl").exists() or (folder / "checkpoints").exists()):
        raise ConfigError(f"{folder} already holds a run: continue it with resume=auto, or choose another output_dir.")
    resumable_checkpoint(folder, cfg)
    benchmarks = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems)
    if cfg.template is not None:
        load_template(cfg.template)
        refuse_unreadable([*([source.problem_set] if isinstance(source, DatasetSource) else []), *benchmarks.values()])
    refuse_contaminated(source, cfg.benchmark, cfg.data.allow_contaminated)
    start_model = model_folder(cfg.model, lambda line: print(line, flush=True))

    with ExitStack() as running:
        running.enter_context(terminable())
        running.enter_context(locked(folder))
        config_file = folder / "config.yaml"
        write_text_atomic(config_file, OmegaConf.to_yaml(OmegaConf.structured(cfg)))
        sync_folder = transfer_folder(folder, None if cfg.sync.folder is None else Path(cfg.sync.folder))
        # The learner empties it after each push; this is for one that was killed on the way.
        running.callback(shutil.rmtree, sync_folder, ignore_errors=True)
        engine = None
        if cfg.rollout.url is None:
            engine = running.enter_context(VllmEngine(engine_options(cfg.rollout, cfg.model, start_model, folder)))
        command = [*learner_command(cfg.learner.ranks), "--config", str(config_file), "--model", str(start_model)]
        command += ["--engine-url", engine.url if engine else str(cfg.rollout.url), "--sync-folder", str(sync_folder)]
        learner = running.enter_context(ChildProcess(command))
        while (code := learner.poll()) is None and (engine is None or engine.poll() is None):
            time.sleep(POLL_S)
        if code is None:
            code = learner.wait(NOTICE_S)  # the engine has ended, which the learner notices at its next request
        if code != 0 and engine is not None and _ends(engine):
            raise EngineError(
                "The engine's process ended while the run was going on; resume=auto goes on from the last checkpoint. "
                f"{folder / 'engine.log'} says: {telling_lines(engine.tail(400))}"
            )
        return 1 if code is None else code


def _ends(engine: VllmEngine) -> bool:
    """Whether the engine has ended or does within a moment: a server whose core died answers 500 first."""
    deadline = time.monotonic() + NOTICE_S
    while engine.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return engine.poll() is not None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the run's folder. Raises ConfigError where one is at work there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder} is being written by another run: wait for it, or choose another output_dir."
            ) from None
        yield


def engine_options(rollout: RolloutConfig, model: ModelConfig, model_path: Path, folder: Path) -> EngineOptions:
    """An engine on the model in `model_path` that logs to `folder`."""
    return EngineOptions(
        model_path=model_path,
        host=rollout.host,
        port=rollout.port,
        dtype=model.dtype,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        kv_cache_gib=rollout.kv_cache_gib,
        threads=rollout.threads,
        startup_timeout_s=rollout.startup_timeout_s,
        log_path=folder / "engine.log",
        token=engine_token(rollout.token_file),
    )


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the run like Ctrl-C, so that both leave by the same door."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
