"""Real learners of this process: random model, embedded word problems, rollouts and sync of engine.py."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from transformers import PreTrainedModel

from experiments.gpu_check.device import FULL, wait
from experiments.gpu_check.engine import Handed, OwnSampling
from experiments.gpu_check.models import cast
from oar.config import TrainConfig, build
from oar.learner.distributed import ALONE, Ranks
from oar.learner.sharding import shard
from oar.learner.step import Learner
from oar.model.lora import add_adapter
from oar.rollout.client.vllm import Engine
from oar.tasks.data.sources import ProblemSource
from oar.tasks.task import Task
from oar.tasks.words import build_tokenizer

ANY_LOGPROBS = {"max_logprob_diff": 1e9}  # for completions that the policy did not draw
STAGES = {
    "score": "scoring",
    "look": "importance",
    "update": "update",
}  # the learner's methods, and what METHOD §8 calls them


def task_of(cfg: TrainConfig) -> Task:
    """The embedded task."""
    return Task.named(build_tokenizer(), cfg.model.marker, cfg.template)


def source_of(cfg: TrainConfig) -> ProblemSource:
    """The learner's own problems."""
    found: ProblemSource = build("data.source", cfg.data.source, cfg.allow_targets)
    return found


def random_words(cfg: TrainConfig, reasoning: tuple[int, int]) -> OwnSampling:
    """An engine whose completions are random words, of logprobs that nobody knows."""
    return OwnSampling(None, task_of(cfg), source_of(cfg), cfg.seed, reasoning)


def learner_on(
    cfg: TrainConfig,
    model: PreTrainedModel,
    engine: Engine,
    sync: Handed,
    ranks: Ranks = ALONE,
    reference: PreTrainedModel | None = None,
) -> Learner:
    """A learner of `model` (float32), with an adapter, shards and a cast where `cfg` says so."""
    if cfg.model.lora is not None:
        add_adapter(model, cfg.model.lora, cfg.seed)
    if cfg.learner.compute_dtype != "float32":
        shard(model, getattr(torch, cfg.learner.compute_dtype))
    return Learner(cfg, model, reference, task_of(cfg), engine, sync, ranks)


def learner_that_samples(
    cfg: TrainConfig, model: PreTrainedModel, reasoning: tuple[int, int], ranks: Ranks = ALONE
) -> Learner:
    """A learner whose completions a copy of its own model draws; the copy has the weights of version 0."""
    copied = cast(copy.deepcopy(model), getattr(torch, cfg.model.dtype))
    reference = copy.deepcopy(model) if cfg.learner.kl_coef > 0 else None
    engine = OwnSampling(copied, task_of(cfg), source_of(cfg), cfg.seed, reasoning)
    learner = learner_on(cfg, model, engine, Handed(engine), ranks, reference)
    learner.publish()
    return learner


@dataclass(slots=True)
class Stages:
    """Seconds and peak bytes of the allocator in each stage of steps; of a stage within another they count for the inner one."""

    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    def watch(self, learner: Learner) -> None:
        """Measure the learner's methods from now on, the device in step at both ends of each."""
        anything: Any = learner
        for method, stage in STAGES.items():
            setattr(anything, method, self._timed(getattr(anything, method), stage))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One more of them."""
        self._pass()
        self._open.append(name)
        try:
            yield
        finally:
            self._pass()
            self._open.pop()

    def _timed(self, method: Any, stage: str) -> Any:
        @wraps(method)
        def timed(*given: Any, **named: Any) -> Any:
            with self.stage(stage):
                return method(*given, **named)

        return timed

    def _pass(self) -> None:
        """What went by since the last border belongs to the innermost stage that is open."""
        wait()
        now = time.perf_counter()
        if self._open:
            stage = self._open[-1]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
            if FULL:
                self.peaks[stage] = max(self.peaks.get(stage, 0.0), float(torch.cuda.max_memory_allocated()))
        if FULL:
            torch.cuda.reset_peak_memory_stats()
        self._since = time.perf_counter()
