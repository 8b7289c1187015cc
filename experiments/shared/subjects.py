"""The models and completions that token signals are examined on: trained and drawn once, kept, shared by every experiment.

Whatever is finished is kept in `work_dir` under a hash of what made it, so a command can be interrupted and run again, and two
experiments with the same settings look at the same completions.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from rich.progress import Progress
from torch import Tensor

from experiments.shared.lazy_engine import StartedEngine, engine_when_needed
from oar.analysis.signals.examine import Subject, examine, signal_importance
from oar.command_line.overrides import own_configuration, quoted
from oar.common.cache import kept, kept_path, kept_table
from oar.common.errors import ConfigError, OarError
from oar.common.processes import ChildProcess
from oar.common.progress import stage
from oar.common.provenance import code_hash, files_hash
from oar.common.seeding import derive_seed
from oar.config import ProbeConfig, TrainConfig, build
from oar.config.checks import Positive, one_of
from oar.config.composed import composed_run
from oar.config.evaluation import Sampling
from oar.launch.pool import Job
from oar.launch.start_model import model_folder
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.rollout.access import TOKEN_VARIABLE
from oar.rollout.types import Rollout
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.problem import Problem
from oar.tasks.task import Task

POLL_S = 1.0
SPLITS = ("tuning", "curve")
BASE, TRAINED, AUTO = "base", "trained", "auto"  # the two models that stand for themselves where no folder is named
COMPLETIONS = "completions.parquet"


@dataclass
class SubjectConfig:
    """Which models, completions and signals; the keys are explained in conf/subject/words.yaml."""

    seed: int
    overrides: list[str]
    models: dict[str, str]
    train_steps: Positive
    train_overrides: list[str]
    split: str
    problems: Positive
    samples: Positive
    probe: ProbeConfig
    signals: dict[str, list[str]]
    pairs: list[list[str]]
    threads: Positive
    output_dir: str
    work_dir: str

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        if any(len(pair) != 2 for pair in self.pairs):
            raise ConfigError(f"Every entry of pairs must hold two signals, but pairs is {self.pairs}.")
        for name in chain.from_iterable(self.pairs):
            self.check_signal("pairs", name)
        for name, path in self.models.items():
            if path == AUTO and name not in (BASE, TRAINED):
                raise ConfigError(f"models.{name} must be a folder; only {BASE} and {TRAINED} may be {AUTO}.")
        if not self.models:
            raise ConfigError("models must name at least one model.")

    def check_signal(self, key: str, name: str) -> None:
        """Raises ConfigError where `name`, which stands under `key`, is no signal."""
        if name not in self.signals:
            raise ConfigError(f"{key} must name signals ({', '.join(self.signals)}), but names {name!r}.")

    def own_overrides(self) -> list[str]:
        """What this measurement sets in conf/train; the seed last, so that no override of the user's can contradict it."""
        return [*self.overrides, f"seed={self.seed}"]

    def training_overrides(self) -> list[str]:
        """What makes conf/train the run of the trained model."""
        return [*self.train_overrides, "method=grpo", f"learner.steps={self.train_steps}"]

    def compose(self, *overrides: str) -> TrainConfig:
        """conf/train with the measurement's own overrides and some more. Raises ConfigError where they do not fit."""
        return composed_run([*self.own_overrides(), *overrides])


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, all of it validated: conf/train as it is used here, and once more for every signal."""

    cfg: SubjectConfig
    settings: TrainConfig
    training: TrainConfig
    signals: dict[str, TrainConfig]
    problems: list[Problem]
    work: Path

    @classmethod
    def of(cls, cfg: SubjectConfig) -> "Plan":
        """Raises ConfigError for whatever cannot work, before anything starts."""
        settings, training = replace(cfg.compose(), probe=cfg.probe), cfg.compose(*cfg.training_overrides())
        signals = {name: signal_settings(cfg, overrides) for name, overrides in cfg.signals.items()}
        for signal in signals.values():
            build("method.estimator", signal.method.estimator, signal.allow_targets)
        sets = load_benchmarks(settings.benchmark, cfg.split, cfg.problems)
        problems = [problem for one in sets.values() for problem in one.problems]
        return cls(cfg, settings, training, signals, problems, Path(cfg.work_dir))

    def training_job(self) -> Job:
        """The run that makes the trained model."""
        overrides = self.cfg.own_overrides() + self.cfg.training_overrides()
        folder = self.work / f"{TRAINED}-{self.training.identity()}-{self.cfg.train_steps}"
        return Job(folder, overrides, self.training)

    def trained_here(self) -> dict[str, object] | None:
        """Where the model that was trained for this comes from; None where none was."""
        return self.training_job().provenance() if self.cfg.models.get(TRAINED) == AUTO else None

    def description(self) -> dict[str, object]:
        """What was measured, for the report."""
        cfg = self.cfg
        under = f" of conf/train under `{' '.join(cfg.overrides)}`" if cfg.overrides else ""
        own = {BASE: f"the starting model{under}", TRAINED: f"the same after {cfg.train_steps} steps of GRPO"}
        models = [f"`{name}`: {own[name] if path == AUTO else f'`{path}`'}" for name, path in cfg.models.items()]
        keys = ("split", "problems", "samples", "seed")
        return {key: getattr(cfg, key) for key in keys} | {"probe": cfg.probe.name, "models": "; ".join(models)}


def signal_settings(cfg: SubjectConfig, overrides: Sequence[str]) -> TrainConfig:
    """conf/train as a signal has it, under the measurement's probe unless it names one of its own."""
    signal = cfg.compose(*overrides)
    own = any(override.startswith("probe") for override in overrides)
    return signal if own else replace(signal, probe=cfg.probe)


def draw_all(plan: Plan, progress: Progress) -> dict[str, tuple[Path, Path]]:
    """Of each model its folder and that of its completions; trained and drawn where they are not there yet.

    One engine for all of it, started when something needs it and ended when all is drawn.
    """
    drawn = {}
    with engine_when_needed(plan.settings, plan.work, progress) as engine:
        for version, (name, path) in enumerate(plan.cfg.models.items()):
            if (name, path) == (TRAINED, AUTO):
                model = train_model(plan, engine, progress)
            else:
                own = plan.settings.model if path == AUTO else replace(plan.settings.model, path=path)
                model = model_folder(own, progress.console.print)
            drawn[name] = model, draw(plan, name, model, version, engine, progress)
    return drawn


def train_model(plan: Plan, engine: Callable[[], StartedEngine], progress: Progress) -> Path:
    """The checkpoint of a GRPO run of `train_steps` steps. Raises OarError where the run fails."""
    steps, job = plan.cfg.train_steps, plan.training_job()
    if job.provenance() is None:
        command = [sys.executable, "-m", "experiments.train", *own_configuration(), *job.overrides, "resume=auto"]
        command += [f"output_dir={quoted(os.path.relpath(job.folder))}", f"rollout.url={engine().url}"]
        with (
            stage(progress, f"{TRAINED}: {steps} steps of GRPO", total=steps) as advance,
            ChildProcess(command, log_path=job.folder / "log.txt", env={TOKEN_VARIABLE: engine().token}) as process,
        ):
            while (code := process.poll()) is None:
                advance(job.steps_done())
                time.sleep(POLL_S)
            if code != 0:
                raise OarError(
                    f"Training ended with exit code {code}; run the same command again to go on from its last checkpoint. "
                    f"The end of {job.folder / 'log.txt'}:\n{process.tail(5)}"
                )
    return job.folder / "checkpoints" / f"step_{steps:06d}"


def own_task(plan: Plan, model: Path) -> Task:
    """The task of the settings in the words of a model's folder."""
    return Task.named(load_tokenizer(model), plan.settings.model.marker, plan.settings.template)


def draw(
    plan: Plan,
    name: str,
    model: Path,
    version: int,
    engine: Callable[[], StartedEngine],
    progress: Progress,
) -> Path:
    """The folder of a model's completions, drawn with its weights as `version` where they are not there yet."""
    cfg, settings, task = plan.cfg, plan.settings, own_task(plan, model)
    sampling = task.ending(Sampling(cfg.samples, settings.rollout.temperature, settings.rollout.max_new_tokens))
    folder = completions_folder(plan, name, model, task, sampling)

    def made() -> pd.DataFrame:
        client, sync = engine().client, engine().sync
        with stage(progress, f"{name}: {len(plan.problems)} x {cfg.samples} completions"):
            sync.push(load_policy(model, settings.model.dtype), version)
            prompts = [task.encode_prompt(problem) for problem in plan.problems]
            groups = client.generate(prompts, sampling, seed=derive_seed(cfg.seed, "recall"), expected_version=version)
        return pd.DataFrame([{"group": at, **asdict(drawn)} for at, group in enumerate(groups) for drawn in group])

    kept_table(folder / COMPLETIONS, made)
    return folder


def completions_folder(plan: Plan, name: str, model: Path, task: Task, sampling: Sampling) -> Path:
    """The folder of the completions that `draw` draws, named by all that decides them."""
    made_of: dict[str, object] = {
        "weights": files_hash(weight_files(model)),
        "problems": [task.render(problem) for problem in plan.problems],
        "sampling": asdict(sampling),
        "seed": plan.cfg.seed,
    }
    if plan.settings.model.dtype != "float32":  # whose folders had their names before another one was told apart
        made_of["dtype"] = plan.settings.model.dtype
    return kept_path(plan.work / "completions", name, made_of)


def load_subject(plan: Plan, model: Path, completions: Path) -> Subject:
    """A model with the completions that `draw` wrote."""
    groups: list[list[Rollout]] = [[] for _ in plan.problems]
    for row in pd.read_parquet(completions / COMPLETIONS).to_dict("records"):
        lists = {key: tuple(row[key].tolist()) for key in ("prompt_ids", "completion_ids", "sampler_logprobs")}
        groups[row["group"]].append(
            Rollout(**lists, weight_version=row["weight_version"], finish_reason=row["finish_reason"])
        )
    policy = load_policy(model, plan.settings.model.dtype)
    return examine(policy, own_task(plan, model), plan.problems, groups, plan.settings)


def kept_importance(subject: Subject, signal: TrainConfig, folder: Path) -> Tensor:
    """An estimator's importance (N, T), computed once: signals that differ only in what is made of it share it."""
    made_of = {
        "estimator": signal.method.estimator,
        "seed": signal.seed,
        "probe": asdict(signal.probe),
        "text": signal.counterfactual.text,
        "dtype": str(subject.inputs.model.dtype),
        "code": code_hash(),
    }
    if signal.probe.path is not None:  # a reward model may be taught anew where it stands
        made_of["scorer"] = files_hash(weight_files(Path(signal.probe.path)))
    file = kept_path(folder, signal.method.name, made_of, ".npy")

    def write(importance: NDArray[Any], to: Path) -> None:
        with to.open("wb") as opened:  # numpy gives a path another ending
            np.save(opened, importance)

    found = kept(file, lambda: signal_importance(subject, signal).cpu().numpy(), write, np.load)
    return torch.from_numpy(found).to(subject.masks.device)
