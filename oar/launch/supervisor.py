"""Starts the engine and the learner, watches both, and leaves neither behind."""

import fcntl
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import OmegaConf
from rich.console import Console

from oar.command_line.exit_codes import terminable
from oar.common.errors import ConfigError, EngineError, OarError
from oar.common.files import shown, write_text_atomic
from oar.common.processes import ChildProcess
from oar.config import EvaluateConfig, ModelConfig, RolloutConfig, SyncConfig, TrainConfig, build
from oar.launch.start_model import model_folder, refuse_missing_model
from oar.learner.checkpoint import CHECKPOINTS, resumable_checkpoint
from oar.learner.credit import Method
from oar.learner.launch import learner_command
from oar.learner.recovery import ENGINE_LOST
from oar.model.load import load_tokenizer, refuse_as_scorer, weights_size
from oar.rollout.access import TOKEN_VARIABLE, engine_token
from oar.rollout.client.http import BUSY_S, HttpServer
from oar.rollout.server.engine import EngineOptions, VllmEngine, telling_lines
from oar.rollout.server.fleet import KeptFleet, VllmFleet, gpus_of_servers
from oar.rollout.sync import refuse_without_gpu
from oar.rollout.sync.checkpoint import clear, transfer_folder, transfer_folders
from oar.runs.tracking import METRICS, check_tracking
from oar.tasks.data.sources import DatasetSource, load_benchmarks, refuse_contaminated, refuse_unreadable
from oar.tasks.reward_terms import RewardTerms
from oar.tasks.template import load_template

POLL_S = 0.2
HEALTH_EVERY = 5  # polls between two questions for the engine's health
NOTICE_S = 2.0
KILLED = 128  # plus the signal's number: the exit code of a process that was killed


def train(cfg: TrainConfig, folder: Path, reused: KeptFleet | None = None) -> int:
    """Run one training in `folder`; returns the exit code. Its servers are those of `reused`, else its own and end with it.

    Everything that can be refused is refused before the first process starts. Raises ConfigError for that, EngineError when the
    engine cannot start or dies (and is not to be restarted), OarError when the learner is killed.
    """
    check_tracking(cfg.tracking.mode)
    refuse_without_gpus(cfg)
    refuse_without_gpu(cfg.sync)
    Method.built(cfg)
    RewardTerms.built(cfg.reward, cfg.allow_targets)
    source = build("data.source", cfg.data.source, cfg.allow_targets)
    if cfg.resume == "never" and ((folder / METRICS).exists() or (folder / CHECKPOINTS).exists()):
        raise ConfigError(f"{folder} already holds a run: continue it with resume=auto, or choose another output_dir.")
    refuse_other_files(folder)
    resumable_checkpoint(folder, cfg)
    if cfg.template is not None:
        load_template(cfg.template)
    refuse_missing_model(cfg.model)
    if isinstance(source, DatasetSource) and source.path is not None:
        source.origin()  # what lies on this machine is read before the hub is asked for anything
    benchmarks = load_benchmarks(cfg.benchmark, "final", cfg.evaluation.final_problems)
    if dropped := source.origin().get("dropped"):
        print(f"data.source.on_bad_row=drop: {dropped['rows']} rows left out. {' '.join(dropped['first'])}", flush=True)
    if cfg.template is not None:
        refuse_unreadable([*([source.problem_set] if isinstance(source, DatasetSource) else []), *benchmarks.values()])
    refuse_contaminated(source, cfg.benchmark, cfg.data.allow_contaminated)
    start_model = model_folder(cfg.model, lambda line: print(line, flush=True))
    if cfg.probe.path is not None:
        refuse_as_scorer(Path(cfg.probe.path), load_tokenizer(start_model))
    servers = []
    if not cfg.rollout.urls:
        gpus = cfg.learner.ranks
        servers = server_options(cfg.rollout, cfg.model, start_model, folder, sync=cfg.sync, learner_gpus=gpus)

    with ExitStack() as running:
        running.enter_context(terminable())
        running.enter_context(locked(folder))
        refuse_silent_servers(cfg.rollout)
        config_file = folder / "config.yaml"
        write_text_atomic(config_file, OmegaConf.to_yaml(OmegaConf.structured(cfg)))
        parent = None if cfg.sync.folder is None else Path(cfg.sync.folder)
        size = weights_size(start_model, cfg.model.dtype) if cfg.sync.name == "checkpoint" else 0
        sync_folder = transfer_folder(folder, parent, size)
        for between in transfer_folders(folder, parent):
            running.callback(clear, between)  # the learner does so after each push; this is for one that was killed
        engine = None
        if servers:
            engine = running.enter_context(own_fleet(servers)) if reused is None else reused.fitting(servers)
        command = [*learner_command(cfg.learner.ranks), "--config", str(config_file), "--model", str(start_model)]
        command += ["--engine-urls", *(engine.urls if engine else cfg.rollout.urls), "--sync-folder", str(sync_folder)]
        command += ["--allow-targets", *cfg.allow_targets]
        lost = folder / ENGINE_LOST
        lost.unlink(missing_ok=True)
        environment = {TOKEN_VARIABLE: engine.token} if engine else {}
        running.callback(Console().show_cursor)  # which the bar of a learner that was ended has left hidden
        learner = running.enter_context(ChildProcess(command, env=environment))
        polls = 0
        while (code := learner.poll()) is None and (engine is None or cfg.rollout.restart or engine.poll() is None):
            if engine is not None and lost.exists():
                engine.restart()
                lost.unlink()
            polls += 1
            if engine is not None and polls % HEALTH_EVERY == 0 and engine.is_sick() and engine.is_sick():
                engine.stop()  # which ends the learner's wait for an answer that would not come
            time.sleep(POLL_S)
        if code is None:
            code = learner.wait(NOTICE_S)  # the engine has ended, which the learner notices at its next request
        if code != 0 and engine is not None and _ends(engine):
            raise EngineError(
                "The engine's process ended while the run was going on; resume=auto goes on from the last checkpoint. "
                f"{engine.log_path} says: {telling_lines(engine.tail(400))}"
            )
        if code is not None and code > KILLED and cfg.learner.ranks == 1:  # several ranks tell it themselves
            raise OarError(
                f"The learner's process was ended by {signal.Signals(code - KILLED).name}: look for a lack of memory, and go on"
                " from the last checkpoint with resume=auto."
            )
        return 1 if code is None else code


def refuse_other_files(folder: Path) -> None:
    """Raises ConfigError where the folder holds files but no run; hidden ones and logs, which may come first, do not count."""
    held = sorted(path.name for path in folder.glob("[!.]*") if path.name != "log.txt" and path.suffix != ".log")
    if held and not {"config.yaml", METRICS, CHECKPOINTS} & set(held):
        raise ConfigError(
            f"output_dir must be a new folder, an empty one or that of a run, but {folder} holds {held[0]} and no run: choose "
            "another output_dir."
        )


def refuse_silent_servers(rollout: RolloutConfig) -> None:
    """Raises ConfigError where nobody, something else than vLLM, or one with another token is at an address of `rollout.url`."""
    for url in rollout.urls:
        server = HttpServer(url, BUSY_S, engine_token(rollout.token_file))
        if server.wants_another_token("/health"):
            raise ConfigError(
                f"The server at {url} must get its own token, but refuses the one that is shown: set OAR_ENGINE_TOKEN, or "
                "rollout.token_file, to the one that it was started with."
            )
        if server.refuses("/health"):
            raise ConfigError(
                f"rollout.url must be the address of a running vLLM server, but {url} does not answer as one: start it there, or "
                "leave rollout.url out."
            )


def own_fleet(servers: Sequence[EngineOptions]) -> VllmFleet:
    """The servers of one program alone, and a word to who waits for them."""
    print(f"starting {len(servers)} vLLM server(s), about a minute; log: {shown(servers[0].log_path)}", flush=True)
    return VllmFleet(servers)


def refuse_without_gpus(cfg: TrainConfig | EvaluateConfig) -> None:
    """Raises ConfigError where the run is made for GPUs (`device`) and there is none."""
    if cfg.device == "any" or torch.cuda.is_available():
        return
    needs, remedy = f"rollout.servers={cfg.rollout.servers} of {cfg.rollout.tensor_parallel} each", "device=any"
    if isinstance(cfg, TrainConfig):
        needs = f"learner.ranks={cfg.learner.ranks}, {needs}; `make plan PROFILE={cfg.profile}` says of what size"
        remedy = "profile=embedded"
    raise ConfigError(
        f"device=gpu needs GPUs ({needs}), but torch finds none here: use a machine that has them, or {remedy}."
    )


def _ends(engine: VllmFleet) -> bool:
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


def server_options(
    rollout: RolloutConfig,
    model: ModelConfig,
    model_path: Path,
    folder: Path,
    *,
    sync: SyncConfig | None = None,
    learner_gpus: int = 0,
) -> list[EngineOptions]:
    """`rollout.servers` servers on the model in `model_path` that log to `folder`, beside a learner of `learner_gpus` GPUs.

    With sync=nccl the learner keeps its GPUs to itself, with ipc it shares them; with checkpoint it shares them where there are
    no others. Raises ConfigError where there are too few.
    """
    count, tensor_parallel = rollout.servers, rollout.tensor_parallel
    way = "checkpoint" if sync is None else sync.name
    enough = learner_gpus + count * tensor_parallel <= torch.cuda.device_count()
    shared = way == "ipc" or (way == "checkpoint" and not enough)
    gpus = gpus_of_servers(count, tensor_parallel, learner=learner_gpus, shared=shared)
    one = EngineOptions(
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
        tensor_parallel=tensor_parallel,
        sync=way,
    )
    return [
        replace(
            one,
            port=one.port + number if one.port else 0,
            gpus=gpus[number],
            log_path=one.log_path if count == 1 else folder / f"engine{number + 1}.log",
        )
        for number in range(count)
    ]


def one_engine(cfg: TrainConfig, model_path: Path, folder: Path, running: ExitStack) -> tuple[str, str | None]:
    """Address and token of the server at rollout.url, else of one of our own, which ends with `running`."""
    if (url := cfg.rollout.only_url) is not None:
        return url, engine_token(cfg.rollout.token_file)
    refuse_without_gpus(cfg)
    engine = running.enter_context(VllmEngine(engine_options(cfg.rollout, cfg.model, model_path, folder)))
    return engine.url, engine.token


def engine_options(rollout: RolloutConfig, model: ModelConfig, model_path: Path, folder: Path) -> EngineOptions:
    """The same for a program that speaks to one server. Raises ConfigError where several are asked for."""
    if rollout.servers > 1:
        raise ConfigError(f"rollout.servers must be 1 for this program, but is {rollout.servers}.")
    return server_options(rollout, model, model_path, folder)[0]
