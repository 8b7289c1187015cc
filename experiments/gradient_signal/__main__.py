"""Signal and noise of the policy gradient under each weighting of tokens, `python -m experiments.gradient_signal`.

When should weights beat uniform ones? Under each condition a fixed base model writes completions of training problems, and
each arm's gradient of the same completions, made by the learner's own update, is held against the gradient of the expected
reward (experiments/gradient_signal/cosines.py). Nothing is trained. Finished conditions are kept in `work_dir` under a
hash of what made them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from numpy.typing import NDArray
from omegaconf import DictConfig
from rich.progress import Progress
from torch import Tensor
from transformers import PreTrainedModel

from experiments.gradient_signal.cosines import FACT, TARGET, signal_table, with_best_weights
from experiments.gradient_signal.foretold import steps_of
from experiments.gradient_signal.page import TOLD, write_gradient_signal
from experiments.shared.committed import committed
from experiments.shared.credited import credited, planned_arms
from oar.analysis.signals.draw import draw
from oar.analysis.signals.examine import completion_advantages, score_batch
from oar.command_line.entry import entry
from oar.common.cache import kept_path, kept_table
from oar.common.errors import ConfigError
from oar.common.progress import progress_bars, stage
from oar.common.provenance import ROOT, code_hash, collect_provenance, files_hash, git_state
from oar.common.seeding import derive_seed
from oar.config import LearnerConfig, TrainConfig, build, validated
from oar.config.checks import AtLeast, Positive, require
from oar.launch.start_model import model_folder
from oar.learner.collect import GradedBatch, collate_groups, grade_groups
from oar.learner.credit import Credited, given_credit
from oar.learner.update import LossBatch, accumulate_gradient
from oar.method.forward.logprobs import Scores
from oar.method.gating import weight_metrics
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.tasks.reward_terms import RewardTerms
from oar.tasks.task import Task
from oar.tasks.words import language

CLASSES = ("causal", "signs", "filler", "words", "end")
PROBLEMS_AT_A_TIME = 16  # drawn by one call of the model


@dataclass
class GradientSignalConfig:
    """One measurement; the keys are explained in conf/gradient_signal.yaml."""

    name: str
    seed: int
    overrides: list[str]
    prompts: Positive
    units: Annotated[int, AtLeast(6)]
    batches: list[int]
    judged: int
    coordinates: int | None
    reference: str
    target: str | None
    foretold: str | None
    arms: dict[str, list[str]]
    conditions: dict[str, list[str]]
    threads: Positive
    output_dir: str
    work_dir: str

    def __post_init__(self) -> None:
        if not self.batches or any(batch < 1 or batch % self.prompts for batch in self.batches):
            raise ConfigError(f"batches must be multiples of prompts ({self.prompts}), but are {self.batches}.")
        if self.coordinates is not None:
            require(self.coordinates >= 1, "coordinates", "null, or 1 or more", self.coordinates)
        if self.judged not in self.batches:
            raise ConfigError(f"judged must be one of batches, {self.batches}, but is {self.judged}.")
        if self.reference not in self.arms or not self.conditions:
            raise ConfigError(f"reference must be one of arms, {', '.join(self.arms)}, and there must be a condition.")
        if self.target is not None and self.target not in self.arms:
            raise ConfigError(f"target must be null or one of arms, {', '.join(self.arms)}, but is {self.target!r}.")


@entry
def main(config: DictConfig) -> None:
    """Validate everything, measure what is missing, write the page."""
    cfg = validated(config, GradientSignalConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    if cfg.foretold is not None:
        steps_of(committed(cfg.foretold))  # a folder without runs is told now, not after the measurement
    plan = {name: planned(cfg, overrides) for name, overrides in cfg.conditions.items()}
    torch.set_num_threads(cfg.threads)
    with progress_bars() as progress:
        tables = [measured(cfg, name, arms, progress).assign(condition=name) for name, arms in plan.items()]
    write_gradient_signal(
        {key: getattr(cfg, key) for key in TOLD},
        pd.concat(tables, ignore_index=True),
        folder,
        collect_provenance(asdict(cfg), started=started, git=git),
    )
    print(f"written to {folder}: {cfg.name}.md, its csv and pictures, provenance.json")


def planned(cfg: GradientSignalConfig, overrides: list[str]) -> dict[str, TrainConfig]:
    """conf/train of every arm under a condition, validated."""
    return planned_arms(cfg.arms, [*cfg.overrides, *overrides, f"seed={cfg.seed}"])


def measured(cfg: GradientSignalConfig, name: str, arms: Mapping[str, TrainConfig], progress: Progress) -> pd.DataFrame:
    """What `measure` finds under a condition, computed once."""
    settings = arms[cfg.reference]
    with stage(progress, f"{name}: model"):
        folder = model_folder(settings.model, progress.console.print)
    made_of = {
        "arms": {arm: own.identity() for arm, own in arms.items()},
        "weights": files_hash(weight_files(folder)),
        "study": [cfg.seed, cfg.prompts, cfg.units, cfg.batches, cfg.judged, cfg.reference, cfg.target, cfg.threads],
        "coordinates": cfg.coordinates,
        "code": code_hash(*(Path(__file__).with_name(name) for name in ("__main__.py", "cosines.py"))),
    }

    def made() -> pd.DataFrame:
        with stage(progress, f"{name}: gradients", total=cfg.units) as advance:
            return measure(cfg, arms, folder, advance)

    return kept_table(kept_path(Path(cfg.work_dir) / "conditions", name, made_of, ".parquet"), made)


def measure(
    cfg: GradientSignalConfig, arms: Mapping[str, TrainConfig], folder: Path, advance: Callable[[int], None]
) -> pd.DataFrame:
    """The rows of `signal_table` under one condition, with batches in problems, and rows of FACT."""
    settings = arms[cfg.reference]
    model = load_policy(folder, settings.model.dtype)
    task = Task.named(load_tokenizer(folder), settings.model.marker, settings.template)
    graded = drawn(cfg, settings, model, task)
    scores = score_batch(model, graded.batch, settings)
    credits = {name: credited(own, model, task, graded, scores) for name, own in arms.items()}
    classes = {name: mask for name, mask in token_classes(graded, task).items() if mask.any()}
    advantages = completion_advantages(graded.rewards, settings.learner)
    rewarded = replace(settings.learner, divide_by_std=False, leave_one_out=True, aggregation="constant")
    everything = {name: (own.token_advantages, settings.learner) for name, own in credits.items()}
    everything |= {name: (advantages[:, None] * mask, settings.learner) for name, mask in classes.items()}
    if cfg.target is None:
        target = completion_advantages(graded.rewards, rewarded)[:, None] * torch.ones_like(scores.logprobs)
    else:  # with less noise than samples of the reward
        target = credits[cfg.target].token_advantages
    everything[TARGET] = target, rewarded
    rows = torch.arange(len(graded.batch)).chunk(cfg.units)
    parameters = sum(one.numel() for one in model.parameters())
    chosen = coordinates(parameters, cfg.coordinates, seed=cfg.seed)
    gradients: dict[str, list[NDArray[np.float32]]] = {name: [] for name in everything}
    for unit, index in enumerate(rows):
        for name, (token_advantages, learner) in everything.items():
            found = gradient(model, graded, scores, token_advantages, index, learner, settings.rollout.temperature)
            gradients[name].append(found[chosen])
        advance(unit + 1)
    table = signal_table(
        with_best_weights(
            {name: np.stack(one) for name, one in gradients.items()}, list(classes), cfg.judged / cfg.prompts
        ),
        reference=cfg.reference,
        classes=list(classes),
        batches=[*(batch / cfg.prompts for batch in cfg.batches), float("inf")],
        lr=settings.learner.lr * parameters / len(chosen),  # a gain is a sum over parameters, all else are ratios
    )
    return pd.concat([table.assign(batch=table["batch"] * cfg.prompts), facts(graded, advantages, credits, classes)])


def coordinates(parameters: int, count: int | None, *, seed: int) -> NDArray[np.int64]:
    """(count,) of so many parameters, drawn at random and in order; all where count is None or no fewer."""
    if count is None or count >= parameters:
        return np.arange(parameters)
    drawn_of = np.random.default_rng(derive_seed(seed, "gradient signal", "coordinates"))
    return np.sort(drawn_of.choice(parameters, count, replace=False, shuffle=False))


def drawn(cfg: GradientSignalConfig, settings: TrainConfig, model: PreTrainedModel, task: Task) -> GradedBatch:
    """Completions of training problems, group by group, graded."""
    source = build("data.source", settings.data.source, settings.allow_targets)
    problems = source.problems(cfg.seed, 0, cfg.units * cfg.prompts)
    groups = []
    for first in range(0, len(problems), PROBLEMS_AT_A_TIME):
        groups += draw(
            model,
            task,
            problems[first : first + PROBLEMS_AT_A_TIME],
            samples=settings.learner.num_generations,
            temperature=settings.rollout.temperature,
            max_new_tokens=settings.rollout.max_new_tokens,
            seed=derive_seed(cfg.seed, "gradient signal", first),
        )
    reward = RewardTerms.built(settings.reward, settings.allow_targets)
    graded = grade_groups(
        problems, groups, task, reward=reward, seed=derive_seed(cfg.seed, "gradient signal", "reward")
    )
    return collate_groups(graded, task, model.device, needs_answer=settings.probe.needs_answer)


def token_classes(graded: GradedBatch, task: Task) -> dict[str, Tensor]:
    """(B, T) by name of CLASSES: what kind of token each token of a completion is; every token is of one kind.

    causal: those that carry the computation, where the task marks them; signs: `=` and `.`, which decide whether a result
    is written out, where the task marks these; filler: meaningless words; words: all else before the marker; end: marker, answer
    and EOS.
    """
    batch = graded.batch
    vocabulary = task.tokenizer.get_vocab()
    filler_ids = torch.tensor([vocabulary[word] for word in language.FILLER if word in vocabulary])
    end = batch.completion_mask & ~batch.reasoning_mask & batch.has_answer[:, None]
    causal = graded.marks.get("causal", torch.zeros_like(end)) & ~end
    signs = graded.marks.get("written", causal) & ~causal & ~end
    filler = torch.isin(batch.completion_ids, filler_ids.to(batch.completion_ids.device)) & batch.completion_mask & ~end
    filler &= ~causal
    words = batch.completion_mask & ~(causal | end | signs | filler)
    return dict(zip(CLASSES, (causal, signs, filler, words, end), strict=True))


def gradient(
    model: PreTrainedModel,
    graded: GradedBatch,
    scores: Scores,
    token_advantages: Tensor,
    index: Tensor,
    learner: LearnerConfig,
    temperature: float,
) -> NDArray[np.float32]:
    """(parameters,): minus the gradient of the learner's loss of the completions `index`, so the way that a step goes.

    With `aggregation=constant` and a length of 1 the loss is a plain sum over tokens, mean over completions: with
    leave-one-out advantages minus its gradient is that of the expected reward, without bias.
    """
    data = LossBatch.of(graded.batch, token_advantages.abs().amax(dim=1))
    known = given_credit(scores.logprobs, token_advantages)
    model.zero_grad(set_to_none=True)
    accumulate_gradient(
        model,
        None,
        data,
        index.to(model.device),
        learner,
        temperature=temperature,
        max_completion_length=1,
        credit=known.lookup,
    )
    parts = [
        torch.zeros(one.numel()) if one.grad is None else -one.grad.flatten().float().cpu()
        for one in model.parameters()
    ]
    return torch.cat(parts).numpy()


def facts(
    graded: GradedBatch, advantages: Tensor, credits: Mapping[str, Credited], classes: Mapping[str, Tensor]
) -> pd.DataFrame:
    """Rows of FACT: what the completions are like, the share of tokens of each class, the ESS ratio of each arm."""
    batch = graded.batch
    tokens, told = batch.completion_mask.sum(), batch.has_answer & (advantages != 0)
    found = {
        "accuracy": float(graded.correct.float().mean()),
        "reward": float(graded.rewards.mean()),
        "completion_tokens": float(batch.completion_lengths.float().mean()),
        "completions": float(len(batch)),
        "with_advantage": float((advantages != 0).float().mean()),
        **{f"tokens/{name}": float(mask.sum() / tokens) for name, mask in classes.items()},
        **{
            f"ess_ratio/{name}": weight_metrics(own.token_weights[told], batch.reasoning_mask[told])["ess_ratio"]
            for name, own in credits.items()
        },
    }
    return pd.DataFrame([{"arm": name, "metric": FACT, "value": value} for name, value in found.items()])


if __name__ == "__main__":
    main()
