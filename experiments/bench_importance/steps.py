"""Whole training steps, all from the same weights and so on the same completions: seconds, peak memory, continuations."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from experiments.bench_importance.costs import GRPO
from experiments.bench_importance.plan import Bench
from experiments.shared.cases import Case
from experiments.shared.fresh_process import like_the_learner, turned
from experiments.shared.lazy_engine import StartedEngine
from experiments.shared.peak_memory import peak_memory
from oar.config import TrainConfig
from oar.learner.beside import Beside
from oar.learner.step import Learner, StepReport
from oar.model.load import load_policy, load_tokenizer
from oar.tasks.task import Task


class Make(Protocol):
    """`learner_of` on an engine."""

    def __call__(self, cfg: TrainConfig, policy: PreTrainedModel | None = None) -> Learner:
        """The learner."""
        ...


def learner_of(engine: Callable[[], StartedEngine], cfg: TrainConfig, policy: PreTrainedModel | None = None) -> Learner:
    """A learner on the engine's starting model, or on a policy that is loaded, with whatever models its method has beside it."""
    like_the_learner(cfg.learner.threads)
    start, _, _, client, sync = engine()
    task = Task.named(load_tokenizer(start), cfg.model.marker, cfg.template)
    policy = policy or load_policy(start, cfg.model.dtype)
    return Learner(cfg, policy, task, client, sync, beside=Beside.loaded(cfg, start, None))


def measure_steps(bench: Bench, part: str, settings: Mapping[str, TrainConfig], make: Make) -> list[dict[str, Any]]:
    """Round by round the seconds of a whole training step of each method, GRPO among them, by stage."""
    cfg = bench.cfg

    @cache
    def warm() -> dict[str, Learner]:
        # One policy for all, which each step finds at the starting weights: a real model for each would not fit.
        grpo = make(settings[GRPO])
        learners = {name: grpo if name == GRPO else make(one, grpo.model) for name, one in settings.items()}
        for at in range(cfg.step_warmup):
            step_of_each(learners, cfg.step_rounds + at)
        return learners

    made_of = {name: one.identity() for name, one in settings.items()} | {"weights": bench.weights}
    return [
        bench.case(f"{part}-{at}", {**made_of, "round": at}, lambda at=at: step_of_each(warm(), at))  # type: ignore[misc]
        for at in range(cfg.step_rounds)
    ]


def step_of_each(learners: Mapping[str, Learner], step: int) -> Case:
    """Training step `step` of each method in turn, all from the weights that GRPO's learner holds before it."""
    start = {key: value.clone() for key, value in learners[GRPO].model.state_dict().items()}
    seconds = {}
    for name in turned(list(learners), step):
        seconds[name] = _step_from(start, learners[name], step).seconds
    learners[GRPO].model.load_state_dict(start)
    return {name: seconds[name] for name in learners}


def measure_apart(bench: Bench, part: str, settings: Mapping[str, TrainConfig], make: Make) -> dict[str, Case]:
    """Of each method by itself what `one_apart` finds."""

    @cache
    def start() -> dict[str, Tensor]:
        return make(settings[GRPO]).model.state_dict()

    return {
        name: bench.case(
            f"{part}-apart-{name}",
            {"settings": one.identity(), "weights": bench.weights},
            lambda one=one: one_apart(partial(make, one), start(), bench.device),  # type: ignore[misc]
        )
        for name, one in settings.items()
    }


def one_apart(make: Callable[[], Learner], start: Mapping[str, Tensor], device: str) -> Case:
    """Of a training step from the weights `start`: bytes that tensors hold at most, models and optimizer included, and more.

    length: mean tokens of a completion; continuation_tokens: those drawn beside the completions. Counting slows a step, so
    that it has no seconds.
    """
    with peak_memory(device) as mark:
        before, _ = mark()
        learner = make()
        beside = learner.beside
        learned = None if beside.reward_model is None else beside.reward_model.model
        for model in (learner.model, beside.reference, beside.teacher, learned):
            if model is not None:
                model.state_dict()  # weights from a file count from their first operation on
        _step_from(start, learner, 0)  # after which there are moments of AdamW
        mark()
        report = _step_from(start, learner, 0)
        peak = mark()[1] - before
    return {
        "peak": peak,
        "length": report.metrics["train/completion_length"],
        "continuation_tokens": report.metrics.get("train/continuation_tokens"),
    }


def _step_from(start: Mapping[str, Tensor], learner: Learner, step: int) -> StepReport:
    learner.model.load_state_dict(start)
    learner.step = step
    learner.sync.push(learner.model, step)
    return learner.training_step()
