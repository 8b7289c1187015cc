"""The runs of sweeps in two tables: a row per run, and a row per run, step and metric. A run that failed is a row as well.

Any folder of runs will do: a Hydra multirun, the cells of Table 1, or a single run.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from numpy.typing import NDArray
from omegaconf import OmegaConf

from experiments.shared.settings import flatten
from oar.analysis.arms import METRICS as ACCURACIES
from oar.common.errors import DataError
from oar.config.saved import saved_config
from oar.runs.collapse import COLLAPSE_WINDOW, collapse_step
from oar.runs.folder import Run, check_alike, has_logged, read_lines, read_run
from oar.runs.tracking import METRICS

NULL = "null"  # a value of a setting, like any other
STATES = FINISHED, UNFINISHED, NOT_BEGUN = "finished", "unfinished", "not begun"
# Where a run writes, reports and finds its servers says nothing of what it computes.
ELSEWHERE = ("output_dir", "resume", "allow_targets", "tracking.", "rollout.url", "rollout.host", "rollout.port")
# column of the table of runs: metric of metrics.jsonl, of whose last COLLAPSE_WINDOW steps it is the mean
LAST = {
    "reward": "train/reward_mean",
    "entropy": "train/entropy",
    "ess_ratio": "weights/ess_ratio",
    "suppressed_share": "weights/suppressed_share",
    "boosted_share": "weights/boosted_share",
}
COLLAPSES = ["collapse_entropy", "collapse_reward", "collapse_step"]
REWARD_SHARE = 0.5  # an assumption of ours: a reward that stays below half of what it was has collapsed


@dataclass(frozen=True)
class Gathered:
    """What `gather` found.

    runs: a row per run, `run` its name, `state` finished, unfinished or not begun, `why` it is not finished, its `overrides`
    where multirun.yaml has them, `step` of `steps` done, `seed`, a column per setting that `varying` names, the columns of LAST,
    `entropy_lowest`, `collapse_entropy`, `collapse_reward` and the earlier one as `collapse_step`, and a column per accuracy
    (`avg@k words1`, `pass@1 mean`, percent). metrics: run, seed, the settings, step, metric, value. finished: by name. sweeps: by
    the name of each folder what was typed after `python -m experiments.train -m`; nothing where it is no multirun's.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    varying: list[str]
    finished: Mapping[str, Run]
    sweeps: Mapping[str, list[str]]


@dataclass(frozen=True)
class _Found:
    """A run's folder as far as it goes."""

    name: str
    overrides: Sequence[str]  # none without multirun.yaml
    settings: Mapping[str, Any] | None  # config.yaml by dotted key
    metrics: pd.DataFrame | None
    run: Run | None

    @property
    def steps(self) -> int:
        """Training steps done; step 0 is the model before training."""
        return 0 if self.metrics is None else int(self.metrics.index.max())


def gather(folders: Sequence[Path]) -> Gathered:
    """Read all runs in `folders`, each a multirun's folder or a run's own.

    Raises DataError where a folder holds no run, none has begun, two finished runs were evaluated in different ways, or a file
    is broken.
    """
    # By the name of its folder, or where two have the same one by its whole path: further seeds of a sweep stand elsewhere.
    names = [folder.name for folder in folders]
    named = {folder.name if names.count(folder.name) == 1 else str(folder): folder for folder in folders}
    if len(named) < len(folders):
        raise DataError(f"folders must name each folder once, but {', '.join(map(str, folders))} does not.")
    found = [one for name, folder in named.items() for one in _found_in(name, folder)]
    if all(one.settings is None for one in found):
        raise DataError(
            f"folders must hold runs of experiments.train, but none of the {len(found)} in {', '.join(map(str, folders))} has a "
            "config.yaml: correct folders, or wait until the first has begun."
        )
    finished = {one.name: one.run for one in found if one.run is not None}
    check_alike(list(finished.values()))
    varying = _varying([one.settings for one in found if one.settings is not None])
    settings = pd.DataFrame([_settings_of(one, varying) for one in found]).apply(_of_one_type)
    runs = pd.concat([pd.DataFrame([_described(one) for one in found]), settings], axis=1)
    runs = pd.concat([runs, pd.DataFrame([_summary(one.metrics) | _scores(one.run) for one in found])], axis=1)
    runs = runs.astype(dict.fromkeys(["steps", "step", *COLLAPSES], "Int64"))
    logged = [(one.name, one.metrics.reset_index()) for one in found if one.metrics is not None]
    lines = [frame.melt("step", var_name="metric").dropna().assign(run=name) for name, frame in logged]
    labels = runs[["run", "seed", *varying]]
    metrics = labels.merge(pd.concat(lines, ignore_index=True), on="run") if lines else pd.DataFrame()
    sweeps = {name: _recorded(folder) for name, folder in named.items()}
    return Gathered(runs, metrics, varying, finished, sweeps)


def planned_overrides(folder: Path) -> dict[str, list[str]]:
    """By subfolder the overrides of each run that a multirun is made of; nothing where its record is not there."""
    typed = _recorded(folder)
    if not typed:
        return {}
    overrides = OverridesParser.create().parse_overrides(typed)
    (runs,) = BasicSweeper.split_arguments(overrides, None)  # what Hydra's own sweeper makes of them, in its order
    return {str(number): list(run) for number, run in enumerate(runs)}


def _recorded(folder: Path) -> list[str]:
    """The overrides in Hydra's record of a multirun whose folders are numbered (conf/train.yaml); none without such a record."""
    file = folder / "multirun.yaml"
    if not file.exists():
        return []
    record: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)  # it may be somebody else's
    try:
        numbered = record["hydra"]["sweep"]["subdir"] == "${hydra.job.num}"
        return [str(one) for one in record["hydra"]["overrides"]["task"]] if numbered else []
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} must be Hydra's record of a multirun, but has no sweep or no overrides.") from error


def collapse_of_reward(reward: NDArray[np.float64]) -> int | None:
    """The step from which on the reward, (steps,) from step 1 on, has collapsed; None where it has not.

    It is the first one from which the mean of COLLAPSE_WINDOW steps stays, to the end, below REWARD_SHARE of the highest such
    mean before it.
    """
    if len(reward) <= COLLAPSE_WINDOW:
        return None
    means = np.convolve(reward, np.full(COLLAPSE_WINDOW, 1 / COLLAPSE_WINDOW), mode="valid")
    before = np.maximum.accumulate(means)[:-1]
    highest_after = np.maximum.accumulate(means[::-1])[::-1][1:]
    (collapsed,) = np.nonzero(highest_after < REWARD_SHARE * before)
    return int(collapsed[0]) + 1 + COLLAPSE_WINDOW if len(collapsed) else None


def _found_in(name: str, folder: Path) -> list[_Found]:
    if not folder.is_dir():
        raise DataError(f"{folder} must be the folder of a multirun or of a run, but is not there: correct the path.")
    if (folder / "config.yaml").exists():
        return [_read(name, folder, [])]
    planned = planned_overrides(folder)
    runs = {sub.name for sub in folder.iterdir() if sub.is_dir() and not _is_aside(sub)} | set(planned)
    if not runs:
        raise DataError(f"{folder} must hold the folders of runs, but has none: correct the path.")
    ordered = sorted(runs, key=lambda run: (0, int(run), "") if run.isdecimal() else (1, 0, run))
    return [_read(f"{name}/{run}", folder / run, planned.get(run, [])) for run in ordered]


def _is_aside(folder: Path) -> bool:
    """Whether it is no run's: hidden (submitit's), or nothing but the logs of servers that several runs share."""
    files = [one.name for one in folder.iterdir()]
    return folder.name.startswith(".") or (bool(files) and all(name.startswith("engine") for name in files))


def _read(name: str, folder: Path, overrides: Sequence[str]) -> _Found:
    config = folder / "config.yaml"
    saved: Any = OmegaConf.to_container(saved_config(config)) if config.exists() else None
    settings = None if saved is None else flatten(saved)
    metrics = read_lines(folder / METRICS) if has_logged(folder) else None
    run = read_run(folder) if settings is not None and (folder / "evaluation.json").exists() else None
    if run is not None and settings is not None and run.provenance["step"] != settings["learner.steps"]:
        # Else it was evaluated once, and is now going on to more steps.
        run = run if run.provenance.get("reached", False) else None
    return _Found(name, overrides, settings, metrics, run)


def _varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which runs differ, the seed left out, in the order of config.yaml; one that an older run lacks too."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [
        key
        for key in keys
        if key != "seed" and not key.startswith(ELSEWHERE) and len({_text(one.get(key)) for one in settings}) > 1
    ]


def _settings_of(found: _Found, varying: Sequence[str]) -> dict[str, Any]:
    """Its seed and varying settings; of one that has not begun, those that its overrides name."""
    keys = ["seed", *varying]
    if found.settings is not None:
        known = {key: found.settings[key] for key in keys if key in found.settings}  # an older run may lack one
        return {key: NULL if value is None else value for key, value in known.items()}
    named = {one.key_or_group: one.value() for one in OverridesParser.create().parse_overrides(list(found.overrides))}
    return {key: named.get(key, named.get(key.removesuffix(".name"))) for key in keys}


def _of_one_type(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Numbers stay numbers (whole ones Int64); a column that holds anything else is text."""
    known = column.dropna()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return column.astype("Int64" if all(float(value).is_integer() for value in known) else "Float64")
    return column.map(_text, na_action="ignore")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _described(found: _Found) -> dict[str, Any]:
    steps = None if found.settings is None else found.settings["learner.steps"]
    if found.run is not None:
        state, why = FINISHED, ""
    elif found.settings is None:
        state, why = NOT_BEGUN, "no config.yaml: it was refused, or the sweep has not come to it"
    else:
        state = UNFINISHED
        why = f"stands at step {found.steps} of {steps}" + (", not evaluated" if found.steps == steps else "")
    overrides = shlex.join(found.overrides)
    return {"run": found.name, "state": state, "why": why, "overrides": overrides, "steps": steps, "step": found.steps}


def _summary(metrics: pd.DataFrame | None) -> dict[str, float | None]:
    """How training ended, and whether it collapsed on the way."""
    row: dict[str, float | None] = dict.fromkeys([*LAST, "entropy_lowest", *COLLAPSES])
    trained = pd.DataFrame() if metrics is None else metrics[metrics.index >= 1]
    if trained.empty:
        return row
    row |= {
        column: trained[metric].dropna().tail(COLLAPSE_WINDOW).mean()
        for column, metric in LAST.items()
        if metric in trained  # GRPO has no weights
    }
    entropy, reward = trained[LAST["entropy"]], trained[LAST["reward"]]
    row["entropy_lowest"] = entropy.rolling(COLLAPSE_WINDOW, min_periods=1).mean().min()
    row["collapse_entropy"] = collapse_step(entropy.to_numpy(np.float64))
    row["collapse_reward"] = collapse_of_reward(reward.to_numpy(np.float64))
    collapses = [step for step in (row["collapse_entropy"], row["collapse_reward"]) if step is not None]
    return row | {"collapse_step": min(collapses, default=None)}


def _scores(run: Run | None) -> dict[str, float | None]:
    if run is None:
        return {}
    rows = run.scores[run.scores["metric"].isin(ACCURACIES)]
    return {f"{row['metric']} {row['benchmark']}": row["value"] for row in rows.to_dict("records")}
