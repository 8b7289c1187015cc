"""Fidelity: how well each cheap signal agrees with exact OAR-P, and at what cost, `python -m experiments.fidelity`.

Under each condition a model (taught here where it is not there yet) writes completions, and every signal is computed on them
and held against exact OAR-P. Finished signals are kept in `work_dir` under a hash of what made them, so the command can
be interrupted and run again, and one more signal costs no more than itself.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from inspect import getsourcefile
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import Progress
from torch import Tensor

from experiments.fidelity.page import write_fidelity
from experiments.shared.counted_tokens import counted_tokens
from experiments.shared.subjects import SPLITS
from oar.analysis.signals.agreement import (
    BACKWARD,
    FORWARD,
    SECONDS,
    agreement_between,
    agreements,
    condition_facts,
    fidelity_table,
)
from oar.analysis.signals.draw import draw
from oar.analysis.signals.examine import Subject, by_completion, examine
from oar.analysis.signals.recall import SPEARMAN
from oar.command_line.entry import entry
from oar.common.cache import kept_path, kept_table
from oar.common.errors import ConfigError, DataError
from oar.common.progress import progress_bars, stage
from oar.common.provenance import ROOT, code_hash, collect_provenance, files_hash, git_state
from oar.common.seeding import derive_seed
from oar.config import GatingConfig, TrainConfig, build, validated
from oar.config.checks import Positive, one_of
from oar.config.composed import composed_run
from oar.launch.start_model import model_folder
from oar.method.gating import make_gate
from oar.method.importance import CreditInputs, GradientImportance, ImportanceEstimator
from oar.method.segments import HASH
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.rollout.types import Rollout
from oar.tasks.data.sources import load_benchmarks
from oar.tasks.embedded.teaching import build_model
from oar.tasks.problem import Problem
from oar.tasks.task import Task

TAUGHT, RANDOM = "taught", "random"
MODEL, SOLUTIONS = "model", "solutions"
# What decides a signal's measurements, beside the condition's settings and its own.
DECIDING = ("seed", "split", "gating", "threads")
IMPORTANCE, GATED = "importance", "gated_weights"  # columns of what is kept, (T,) in each cell
OWN_CODE = ("fidelity/__main__.py", "shared/counted_tokens.py")


@dataclass
class ConditionConfig:
    """Under which circumstances signals are compared; conf/compared explains the keys. No weights: left out."""

    probe: str = "as_mean"
    weights: str | None = TAUGHT
    teach: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    problems: int | None = None
    completions: str = MODEL

    def __post_init__(self) -> None:
        one_of("completions", self.completions, (MODEL, SOLUTIONS))


@dataclass
class FidelityConfig:
    """One fidelity study; the keys are explained in conf/fidelity.yaml."""

    seed: int
    overrides: list[str]
    split: str
    problems: Positive
    trained: str | None
    variant_teaching: dict[str, Any]
    conditions: dict[str, ConditionConfig]
    reference: str
    pairs: list[list[str]]
    series: dict[str, dict[str, str]]
    signals: dict[str, Any]
    gating: GatingConfig
    repeats: Positive
    threads: Positive
    output_dir: str
    work_dir: str

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        if all(condition.weights is None for condition in self.conditions.values()):
            raise ConfigError("conditions must hold one with weights at least, but has none.")
        if not self.pairs or any(len(pair) != 2 for pair in self.pairs):
            raise ConfigError(f"pairs must hold two signals each, one pair at least, but is {self.pairs}.")
        for name in (self.reference, *chain(*self.pairs, *(line.values() for line in self.series.values()))):
            if name not in self.signals:
                known = ", ".join(self.signals)
                raise ConfigError(f"reference, pairs and series must name signals ({known}), but name {name!r}.")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, validated: conf/train as it is used under it, whose completions, and how many tokens these may have."""

    name: str
    settings: TrainConfig
    random_weights: bool
    completions: str
    max_new_tokens: int
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, all of it validated."""

    cfg: FidelityConfig
    conditions: list[Condition]
    skipped: list[str]
    estimators: dict[str, ImportanceEstimator]

    @classmethod
    def of(cls, cfg: FidelityConfig) -> "Plan":
        """Raises ConfigError for whatever cannot work, before anything starts."""
        used = {name: condition for name, condition in cfg.conditions.items() if condition.weights is not None}
        allowed = composed_run(cfg.overrides).allow_targets
        return cls(
            cfg,
            [_condition(name, condition, cfg) for name, condition in used.items()],
            [name for name in cfg.conditions if name not in used],
            {name: build(f"signals.{name}", target, allowed) for name, target in cfg.signals.items()},
        )

    def description(self) -> dict[str, object]:
        """What was measured, for the report."""
        keys = ("split", "problems", "seed", "reference", "repeats", "threads")
        skipped = ", ".join(f"`{name}`" for name in self.skipped)
        return {key: getattr(self.cfg, key) for key in keys} | {"skipped": skipped}


def _condition(name: str, condition: ConditionConfig, cfg: FidelityConfig) -> Condition:
    # The seed last, so that no override of the user's can contradict it.
    train = composed_run([*cfg.overrides, *condition.overrides, f"seed={cfg.seed}"])
    own = condition.weights not in (TAUGHT, RANDOM)
    if own and condition.teach:
        raise ConfigError(f"conditions.{name} names a folder as weights, so it can have no teach: remove one of them.")
    made_here = bool(condition.teach) or condition.weights == RANDOM
    if made_here and train.model.teach is None:
        raise ConfigError(f"conditions.{name} needs model.teach, but overrides set it to null: remove the condition.")
    model, tokens = train.model, train.rollout.max_new_tokens
    if own:
        model = replace(model, path=condition.weights)
    elif made_here:
        changes = {**cfg.variant_teaching, **condition.teach} if condition.teach else {}
        model = replace(model, path=None, teach={**train.model.teach, **changes})
        tokens = max(tokens, build(f"conditions.{name}.teach", model.teach).max_new_tokens)
    settings = replace(train, model=model, probe=replace(train.probe, name=condition.probe))
    sets = load_benchmarks(train.benchmark, cfg.split, condition.problems or cfg.problems)
    problems = [problem for one in sets.values() for problem in one.problems]
    return Condition(name, settings, condition.weights == RANDOM, condition.completions, tokens, problems)


@entry
def main(config: DictConfig) -> None:
    """Validate everything, teach what is missing, measure what is missing, write table and picture."""
    cfg = validated(config, FidelityConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    plan = Plan.of(cfg)
    with progress_bars() as progress:
        for name in plan.skipped:
            progress.console.print(f"{name}: left out, its weights are null", highlight=False)
        # All teaching first: seconds are measured while nothing else of ours goes on.
        folders = []
        for condition in plan.conditions:
            with stage(progress, f"{condition.name}: model"):
                folders.append(model_folder(condition.settings.model, progress.console.print))
        torch.set_num_threads(cfg.threads)
        kept = [
            measured(plan, condition, model, cfg.repeats if at == 0 else 1, progress)
            for at, (condition, model) in enumerate(zip(plan.conditions, folders, strict=True))
        ]
    measurements = pd.concat([with_agreement(each, cfg.reference) for each in kept], ignore_index=True)
    write_fidelity(
        fidelity_table(measurements, pairs=cfg.pairs, seed=cfg.seed),
        condition_facts(measurements, cfg.reference),
        folder,
        run=plan.description(),
        conditions={name: condition_text(cfg.conditions[name]) for name in cfg.conditions},
        signals=cfg.signals,
        lead=(cfg.pairs[0][0], cfg.pairs[0][1]),
        series=cfg.series,
        provenance=collect_provenance(asdict(cfg), started=started, git=git),
    )
    print(f"written to {folder}: fidelity.csv, fidelity.md, fidelity.png, provenance.json")


def measured(plan: Plan, condition: Condition, folder: Path, repeats: int, progress: Progress) -> pd.DataFrame:
    """What `measure` finds under a condition, each signal computed once."""
    cfg = plan.cfg
    made_of = {
        "settings": condition.settings.identity(),
        "random_weights": condition.random_weights,
        "completions": condition.completions,
        "max_new_tokens": condition.max_new_tokens,
        "problems": [problem.id for problem in condition.problems],
        "weights": files_hash(weight_files(folder)),
        "repeats": repeats,
        "study": {key: value for key, value in asdict(cfg).items() if key in DECIDING},
    }
    own_code = [ROOT / "experiments" / name for name in OWN_CODE]
    subject = cache(lambda: load_subject(cfg.seed, condition, folder))  # not needed where all signals are there
    tables: list[pd.DataFrame] = []
    with stage(progress, f"{condition.name}: signals", total=len(plan.estimators)) as advance:
        for name, estimator in plan.estimators.items():
            advance(len(tables))
            code = code_hash(*own_code, Path(getsourcefile(type(estimator)) or ""))
            made = made_of | {"signal": cfg.signals[name], "code": code}
            file = kept_path(Path(cfg.work_dir) / "signals", f"{condition.name}-{name}", made, ".parquet")
            tables.append(kept_table(file, partial(measure, plan, subject, name, repeats)))
    return pd.concat(tables, ignore_index=True).assign(condition=condition.name)


def load_subject(seed: int, condition: Condition, folder: Path) -> Subject:
    """A condition's model with completions: its own, with random weights those of the model in `folder`, or the solutions."""
    settings, problems = condition.settings, condition.problems
    model = load_policy(folder, settings.model.dtype)
    task = Task.named(load_tokenizer(folder), settings.model.marker, settings.template)
    if condition.completions == SOLUTIONS:
        rollouts = [written(task, problem) for problem in problems]
        short = [at for at, one in enumerate(rollouts) if len(one.completion_ids) <= condition.max_new_tokens]
        problems, groups = [problems[at] for at in short], [[rollouts[at]] for at in short]
    else:
        groups = draw(
            model,
            task,
            problems,
            temperature=settings.rollout.temperature,
            max_new_tokens=condition.max_new_tokens,
            seed=derive_seed(seed, "fidelity"),
        )
    if condition.random_weights:
        model = build_model(build("model.teach", settings.model.teach), task.tokenizer).eval().to(model.device)
    if condition.random_weights or condition.completions == SOLUTIONS:
        # Who wrote them has other logprobs, or none.
        settings = replace(settings, sync=replace(settings.sync, max_logprob_diff=float("inf")))
    return examine(model, task, problems, groups, settings)


def written(task: Task, problem: Problem) -> Rollout:
    """The data set's solution and answer as a completion, as a warm start is taught. Raises DataError where it has none."""
    if not problem.solution:
        raise DataError(
            f"completions=solutions needs problems with solutions, but {problem.id} has none: choose benchmark=gsm8k."
        )
    text = f" {problem.solution}\n{HASH} {problem.answer}"
    ids = (*task.tokenizer(text, add_special_tokens=False).input_ids, task.stop_ids[0])
    return Rollout(tuple(task.encode_prompt(problem)), ids, (0.0,) * len(ids), 0, "stop")


def measure(plan: Plan, subject: Callable[[], Subject], name: str, repeats: int) -> pd.DataFrame:
    """A row per completion: importance and weights of its reasoning tokens, and what the signal costs."""
    inputs, masks, estimator = subject().inputs, subject().masks.cpu(), plan.estimators[name]
    truth, lengths = subject().truth, masks.sum(dim=1).tolist()
    known = pd.DataFrame({"problem": truth.problems, "correct": truth.correct, "tokens": lengths})
    known = known.assign(drawn=subject().drawn)
    values, costs = timed(estimator, inputs, repeats)
    gated = make_gate(**plan.cfg.gating.options())(values, masks)
    found = pd.DataFrame({IMPORTANCE: by_completion(values, masks), GATED: by_completion(gated, masks)})
    table = known.assign(signal=name, **costs).join(found)
    if not isinstance(estimator, GradientImportance) or estimator.noise_draws == 1:
        return table
    draws = estimator.draws(inputs).cpu()
    between = [agreement_between(draws[:, at, mask]) for at, mask in enumerate(masks)]
    drawn = known.assign(signal=f"{name} between draws", **{SPEARMAN: between})
    return pd.concat([table, drawn], ignore_index=True)


def with_agreement(kept: pd.DataFrame, reference: str) -> pd.DataFrame:
    """What `measure` gave, importance and weights replaced by how well they agree with those of the signal `reference`."""
    signals = {str(name): rows.reset_index(drop=True) for name, rows in kept.groupby("signal", sort=False)}
    held = signals[reference]
    tables = []
    for rows in signals.values():
        measured = rows.drop(columns=[IMPORTANCE, GATED])
        if rows[IMPORTANCE].notna().all():  # of draws only the agreement with one another is known
            found = agreements(*(list(each[column]) for column in (IMPORTANCE, GATED) for each in (rows, held)))
            measured = measured.drop(columns=SPEARMAN, errors="ignore").join(found)
        tables.append(measured)
    return pd.concat(tables, ignore_index=True)


def timed(estimator: ImportanceEstimator, inputs: CreditInputs, repeats: int) -> tuple[Tensor, dict[str, float]]:
    """Importance (N, T) on the CPU, and seconds and tokens for one completion, the clean forward included."""
    completions = len(inputs.batch)
    seconds = []
    for _ in range(repeats):
        with counted_tokens(inputs.model) as tokens:
            started = time.perf_counter()
            importance = estimator(inputs).cpu()  # the copy waits for a GPU
            seconds.append(time.perf_counter() - started)
    cost = {SECONDS: min(seconds), FORWARD: tokens.forward, BACKWARD: tokens.backward}
    return importance, {name: value / completions for name, value in cost.items()}


def condition_text(condition: ConditionConfig) -> str:
    """A condition as a line of the report."""
    said = {"probe": condition.probe, "weights": condition.weights, **condition.teach}
    if condition.completions == SOLUTIONS:
        said["completions"] = "the data set's solutions, not the model's own"
    if condition.problems is not None:
        said["problems"] = condition.problems
    return ", ".join([*(f"{key} {value}" for key, value in said.items()), *condition.overrides])


if __name__ == "__main__":
    main()
