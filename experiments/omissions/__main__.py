"""What credit says of a mistake that has a token, and of one that has none: `python -m experiments.omissions`.

The reference solution of a problem is changed at one step: its value is wrong or left out, or the whole step is left out or
stands there twice. Behind each the policy answers by itself. These completions and the right one are a group, whose tokens
every arm credits as a training step would. What a mistake costs, continuations tell. Nothing is trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.progress import Progress
from torch import Tensor
from transformers import PreTrainedModel

from experiments.omissions.edits import EDITS, Edited, edits
from experiments.omissions.page import BLAMED, COST, REWARD, SHARE, SUM_BELOW, TOKEN_BELOW, TRUTH, write_omissions
from experiments.shared.credited import credited, planned_arms
from oar.analysis.signals.draw import continued
from oar.analysis.signals.examine import score_batch
from oar.analysis.signals.recall import COLUMNS, split_averages
from oar.command_line.entry import entry
from oar.common.cache import kept_path, kept_table
from oar.common.errors import DataError
from oar.common.progress import progress_bars, stage
from oar.common.provenance import ROOT, code_hash, collect_provenance, files_hash, git_state
from oar.common.seeding import derive_seed
from oar.config import TrainConfig, build, validated
from oar.config.checks import AtLeast, Positive
from oar.launch.start_model import model_folder
from oar.learner.collect import GradedBatch, collate_groups, grade_groups
from oar.model.load import load_policy, load_tokenizer, weight_files
from oar.rollout.types import Rollout
from oar.tasks.problem import Problem
from oar.tasks.reward_terms import RewardTerms
from oar.tasks.task import Task

AT_A_TIME = 512  # completions drawn by one call of the model
GROUP = 1 + len(EDITS)


@dataclass
class OmissionsConfig:
    """One measurement; the keys are explained in conf/omissions.yaml."""

    seed: int
    problems: Positive
    continuations: Annotated[int, AtLeast(2)]
    overrides: list[str]
    arms: dict[str, list[str]]
    conditions: dict[str, list[str]]
    threads: Positive
    work_dir: str
    output_dir: str


@dataclass(frozen=True, slots=True)
class Group:
    """A problem with its edited completions, by name of the edit, each with where its reasoning departs."""

    problem: Problem
    wrong: Mapping[str, tuple[Rollout, int]]


@entry
def main(config: DictConfig) -> None:
    """Validate everything, measure what is missing, write the page."""
    cfg = validated(config, OmissionsConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    plan = {name: planned(cfg, overrides) for name, overrides in cfg.conditions.items()}
    torch.set_num_threads(cfg.threads)
    with progress_bars() as progress:
        tables = [measured(cfg, name, arms, progress).assign(condition=name) for name, arms in plan.items()]
    folder = Path(HydraConfig.get().runtime.output_dir)
    told = {name: getattr(cfg, name) for name in ("seed", "problems", "continuations", "arms", "conditions")}
    provenance = collect_provenance(asdict(cfg), started=started, git=git) | {"omissions": told}
    print(write_omissions(pd.concat(tables, ignore_index=True), folder, provenance).read_text(encoding="utf-8"))
    print(f"written to {folder}")


def planned(cfg: OmissionsConfig, overrides: Sequence[str]) -> dict[str, TrainConfig]:
    """conf/train of every arm under a condition, validated; a group is the right completion and its edits."""
    group = [f"learner.num_generations={GROUP}", f"learner.batch_size={GROUP}"]
    return planned_arms(cfg.arms, [*cfg.overrides, *overrides, *group, f"seed={cfg.seed}"])


def measured(cfg: OmissionsConfig, name: str, arms: Mapping[str, TrainConfig], progress: Progress) -> pd.DataFrame:
    """What `measure` finds under a condition, computed once."""
    with stage(progress, f"{name}: model"):
        folder = model_folder(next(iter(arms.values())).model, progress.console.print)
    made_of = {
        "arms": {arm: own.identity() for arm, own in arms.items()},
        "weights": files_hash(weight_files(folder)),
        "study": [cfg.seed, cfg.problems, cfg.continuations, cfg.threads],
        "code": code_hash(*(Path(__file__).with_name(name) for name in ("__main__.py", "edits.py"))),
    }
    file = kept_path(Path(cfg.work_dir) / "conditions", name, made_of, ".parquet")
    return kept_table(file, lambda: measure(cfg, name, arms, folder, progress))


def measure(
    cfg: OmissionsConfig, name: str, arms: Mapping[str, TrainConfig], folder: Path, progress: Progress
) -> pd.DataFrame:
    """COLUMNS of the model in `folder`, a split per edit. Raises DataError where no mistake costs the policy anything."""
    settings = next(iter(arms.values()))
    model = load_policy(folder, settings.model.dtype)
    task = Task.named(load_tokenizer(folder), settings.model.marker, settings.template)
    reward = RewardTerms.built(settings.reward, settings.allow_targets)
    with stage(progress, f"{name}: completions"):
        groups, graded = answered(cfg, settings, model, task, reward)
    places, kinds = places_of(groups), np.array([name for one in groups for name in ("", *one.wrong)])
    rewards = graded.rewards.reshape(len(groups), GROUP)
    lost = (rewards < rewards[:, :1]).flatten().cpu().numpy()
    if not lost.any():
        raise DataError(f"{name}: an edit must cost the policy its reward, but none did: train or teach it longer.")
    scores, metrics = score_batch(model, graded.batch, settings), {}
    with stage(progress, f"{name}: arms", total=len(arms)) as advance:
        for done, (arm, own) in enumerate(arms.items()):
            advantages = credited(own, model, task, graded, scores).token_advantages
            metrics[arm] = blame(advantages, graded.batch.reasoning_mask, places)
            advance(done + 1)
    with stage(progress, f"{name}: continuations"):
        costs = true_costs(cfg, settings, model, task, reward, groups)
    metrics[TRUTH] = pd.DataFrame({COST: costs, REWARD: graded.rewards.cpu().numpy()})
    problems = np.array([problem.id for problem in graded.problems])
    splits = {edit: lost & (kinds == edit) for edit in EDITS}
    return pd.DataFrame(split_averages(metrics, splits, problems, seed=cfg.seed), columns=COLUMNS)


def answered(
    cfg: OmissionsConfig, settings: TrainConfig, model: PreTrainedModel, task: Task, reward: RewardTerms
) -> tuple[list[Group], GradedBatch]:
    """The groups in which the policy answers the right reasoning rightly, and their completions, group by group."""
    source = build("data.source", settings.data.source, settings.allow_targets)
    vocabulary = task.tokenizer.get_vocab()
    digits = {vocabulary[digit] for digit in "12345678" if digit in vocabulary}  # all that a sheet has
    marker, begun = task.encode_marker(None), []
    for problem in source.problems(cfg.seed, 0, cfg.problems):
        ids = task.encode_solution(problem)
        rng = Random(derive_seed(cfg.seed, "omissions", problem.id))
        found = edits(ids, task.step_starts(ids), digits, rng)
        if len(found) == len(EDITS):
            begun.append((problem, {"": Edited(tuple(ids), len(ids)), **found}))
    if not begun:
        raise DataError(
            f"Reference solutions must have two steps or more, and a number whose digits are tokens of their own, but none of "
            f"{cfg.problems} has: choose another task or model."
        )
    asked = [
        Rollout(
            tuple(task.encode_prompt(problem)), (*one.ids, *marker), (0.0,) * (len(one.ids) + len(marker)), 0, "length"
        )
        for problem, written in begun
        for one in written.values()
    ]
    drawn = drawn_behind(model, task, asked, settings, seed=derive_seed(cfg.seed, "omissions", "answers"))
    of_groups = [drawn[at : at + GROUP] for at in range(0, len(drawn), GROUP)]
    graded = grade_groups([problem for problem, _ in begun], of_groups, task, reward=reward, seed=cfg.seed)
    kept = [
        place for place, one in enumerate(graded) if one.earned[0].total == max(own.total for own in one.earned) > 0
    ]
    groups = [
        Group(
            begun[place][0],
            {
                name: (rollout, begun[place][1][name].place)
                for name, rollout in zip(EDITS, of_groups[place][1:], strict=True)
            },
        )
        for place in kept
    ]
    if not groups:
        raise DataError("The policy must answer right reasoning rightly, but never does: train or teach it longer.")
    return groups, collate_groups([graded[place] for place in kept], task, model.device)


def drawn_behind(
    model: PreTrainedModel, task: Task, begun: Sequence[Rollout], settings: TrainConfig, *, seed: int
) -> list[Rollout]:
    """The completions that were begun, ended by the policy at the training temperature."""
    found: list[Rollout] = []
    for first in range(0, len(begun), AT_A_TIME):
        some = begun[first : first + AT_A_TIME]
        drawn = continued(
            model,
            task,
            [(*one.prompt_ids, *one.completion_ids) for one in some],
            temperature=settings.rollout.temperature,
            max_new_tokens=settings.rollout.max_new_tokens,
            seed=derive_seed(seed, first),
        )
        found += [ended.behind(one) for ended, one in zip(drawn, some, strict=True)]
    return found


def places_of(groups: Sequence[Group]) -> list[int | None]:
    """(B,): where the reasoning of each completion departs from the right one, None for the right one."""
    return [place for one in groups for place in (None, *(where for _, where in one.wrong.values()))]


def blame(advantages: Tensor, reasoning: Tensor, places: Sequence[int | None]) -> pd.DataFrame:
    """Of token advantages (B, T) a row per completion; NaN for a right one, which departs nowhere and stands before its edits.

    blamed: whether the token at the place has a negative one; share_of_blame: how much of all that is negative in the reasoning
    lies there; token_below_right: whether it has less than the right one's token there, which stands behind the same tokens;
    sum_below_right: whether the reasoning's advantages sum to less than the right one's.
    """
    rows, right, right_sum = [], advantages[0], 0.0
    for own, mask, place in zip(advantages.cpu(), reasoning.cpu(), places, strict=True):
        if place is None:
            right, right_sum = own, float(own[mask].sum())
            rows.append(dict.fromkeys((BLAMED, SHARE, TOKEN_BELOW, SUM_BELOW), np.nan))
            continue
        negative = -own[mask].clamp(max=0).sum()
        rows.append(
            {
                BLAMED: float(own[place] < 0),
                SHARE: float(-own[place].clamp(max=0) / negative) if negative > 0 else 0.0,
                TOKEN_BELOW: float(own[place] < right[place]),
                SUM_BELOW: float(own[mask].sum() < right_sum),
            }
        )
    return pd.DataFrame(rows)


def true_costs(
    cfg: OmissionsConfig,
    settings: TrainConfig,
    model: PreTrainedModel,
    task: Task,
    reward: RewardTerms,
    groups: Sequence[Group],
) -> list[float]:
    """(B,): mean reward of completions begun up to the place, less that of those begun up to behind it; NaN without a place."""
    begun, owners = [], []
    for group in groups:
        for rollout, place in group.wrong.values():
            for end in (place, place + 1):
                one = replace(rollout, completion_ids=rollout.completion_ids[:end], sampler_logprobs=(0.0,) * end)
                begun += [one] * cfg.continuations
                owners.append(group.problem)
    drawn = drawn_behind(model, task, begun, settings, seed=derive_seed(cfg.seed, "omissions", "continuations"))
    count = cfg.continuations
    graded = grade_groups(
        owners,
        [drawn[at : at + count] for at in range(0, len(drawn), count)],
        task,
        reward=reward,
        seed=cfg.seed,
    )
    values = (
        np.array([[own.total for own in one.earned] for one in graded]).mean(axis=1).reshape(len(groups), len(EDITS), 2)
    )
    costs = values[:, :, 0] - values[:, :, 1]
    return [float(one) for own in costs for one in (np.nan, *own)]


if __name__ == "__main__":
    main()
