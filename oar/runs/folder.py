"""A finished run's folder, read back: its settings, where its numbers come from, scores and logs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from oar.command_line.overrides import CONF
from oar.common.errors import DataError
from oar.config import TrainConfig
from oar.config.saved import saved_config
from oar.evaluation.evaluate import MEAN
from oar.evaluation.graded import Evaluation, Scores, check_same, problem_scores, read_evaluation, right_samples
from oar.runs.tracking import METRICS, TIMINGS

START_WEIGHTS = "start_weights"  # of a run's provenance: the hash of the weights that it began with


@dataclass(frozen=True)
class Run:
    """What `experiments.train` left in `folder`. `settings`: config.yaml; `provenance`: of evaluation.json.

    `arm`, `condition`: where it stands in a comparison. `saved_problems`: the right samples by problem (RIGHT), where
    samples.parquet is not there.
    """

    folder: Path
    settings: DictConfig
    provenance: Mapping[str, Any]
    arm: str = ""
    condition: str = ""
    saved_problems: pd.DataFrame | None = None

    @property
    def seed(self) -> int:
        """Of the training."""
        return int(self.settings.seed)

    def has(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the run has these settings: {"gating.tau": 0.4}."""
        return all(OmegaConf.select(self.settings, key) == value for key, value in wanted.items())

    @cached_property
    def scores(self) -> pd.DataFrame:
        """evaluation.csv: a row per benchmark and metric."""
        return pd.read_csv(self.folder / "evaluation.csv")

    def score(self, benchmark: str, metric: str) -> "pd.Series[Any]":
        """The row of `scores`."""
        return self.scores[(self.scores["benchmark"] == benchmark) & (self.scores["metric"] == metric)].iloc[0]

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Every graded completion; None where the run does not have them."""
        return read_evaluation(self.folder) if (self.folder / "samples.parquet").exists() else None

    @cached_property
    def problems(self) -> pd.DataFrame | None:
        """Right samples by problem (RIGHT); None where the run does not have them."""
        return self.saved_problems if self.evaluation is None else right_samples(self.evaluation)

    def problem_scores(self, metric: str) -> Scores:
        """By benchmark the percent correct of each problem; nothing where the run does not have them."""
        return {} if self.problems is None else problem_scores(self.problems, metric)

    def benchmark_scores(self, metric: str) -> Scores:
        """By benchmark its percent correct, as if it had one problem."""
        rows = self.scores[(self.scores["metric"] == metric) & (self.scores["benchmark"] != MEAN)]
        return {row["benchmark"]: pd.Series([row["value"]]) for row in rows.to_dict("records")}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.jsonl by step."""
        return read_lines(self.folder / METRICS)

    @cached_property
    def timings(self) -> pd.DataFrame:
        """timings.jsonl by step."""
        return read_lines(self.folder / TIMINGS)


def read_run(folder: Path, *, arm: str = "", condition: str = "") -> Run:
    """The run in a folder. Raises DataError where it has not finished."""
    files = [folder / name for name in ("config.yaml", "evaluation.json", "evaluation.csv")]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is missing: finish that run, or correct the path.")
    provenance = _provenance(files[1])
    if provenance is None:
        raise DataError(f"{files[1]} must say where its numbers come from, but does not: run again with this version.")
    missing = {"identity", "measure", "step"} - set(provenance)
    if missing:
        raise DataError(f"{files[1]} does not say {', '.join(sorted(missing))}: run again with this version.")
    return Run(folder, saved_config(files[0]), provenance, arm, condition)


def _provenance(evaluation: Path) -> dict[str, Any] | None:
    """Where evaluation.json says that its numbers come from; None where it does not, or is damaged."""
    try:
        found = json.loads(evaluation.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    provenance = found.get("provenance") if isinstance(found, dict) else None
    return provenance if isinstance(provenance, dict) else None


def step_seconds(runs: Iterable[Run]) -> float:
    """Median seconds of a training step, over all steps of all runs."""
    return float(pd.concat([run.timings["total"].dropna() for run in runs]).median())


def full_steps() -> dict[str, int]:
    """By profile of conf/profile the training steps of a whole run."""
    files = sorted((CONF / "profile").glob("*.yaml"))
    return {file.stem: int(OmegaConf.load(file).learner.steps) for file in files}


def finished(folder: Path, settings: TrainConfig) -> dict[str, Any] | None:
    """Where the numbers of the run in `folder` come from; None where it has not finished, or did under other settings.

    A run that has reached `evaluation.stop_at` has finished, whatever its step.
    """
    evaluation = folder / "evaluation.json"
    found = _provenance(evaluation) if evaluation.exists() else None
    if found is None:
        return None
    wanted = {"identity": settings.identity(), "measure": settings.measure()}
    done = found.get("step") == settings.learner.steps or found.get("reached", False)
    return found if done and {key: found.get(key) for key in wanted} == wanted else None


def check_alike(runs: Sequence[Run]) -> None:
    """Raises DataError where two runs were evaluated in different ways, or on other problems."""
    for run in runs[1:]:
        if run.provenance["measure"] != runs[0].provenance["measure"]:
            raise DataError(
                f"{runs[0].folder} and {run.folder} were evaluated with different settings: evaluate both in the same way."
            )
    evaluations = [run.evaluation for run in runs if run.evaluation is not None]
    for evaluation in evaluations[1:]:
        check_same(evaluations[0], evaluation)


def check_same_start(runs: Sequence[Run]) -> None:
    """Raises DataError where two runs have the same settings of the model, but began with other weights.

    Another processor rounds otherwise and teaches another base model from the same settings. Older runs do not say what they
    began with.
    """
    known = [run for run in runs if START_WEIGHTS in run.provenance]
    for one, other in combinations(known, 2):
        alike = one.settings.model == other.settings.model
        if alike and one.provenance[START_WEIGHTS] != other.provenance[START_WEIGHTS]:
            raise DataError(
                f"{one.folder} and {other.folder} must begin with the same weights to be compared, but each began with its own "
                "(another processor rounds otherwise and teaches another base model): train both from one."
            )


def has_logged(folder: Path, name: str = METRICS) -> bool:
    """Whether the run in `folder` has a whole line in its file `name`; taken up again from its start it has none for a while."""
    log = folder / name
    return log.exists() and b"\n" in log.read_bytes()


def read_lines(path: Path) -> pd.DataFrame:
    """A metrics.jsonl or timings.jsonl as a frame indexed by step; undefined metrics are NaN.

    A last line that a kill cut off is left out. Raises DataError where there is no step, or a line is none of JSON.
    """
    if not path.exists():
        raise DataError(f"{path} is missing: the cell has not finished.")
    lines, newline, _ = path.read_text(encoding="ascii").rpartition("\n")
    try:
        frame = pd.read_json(StringIO(lines + newline), lines=True, precise_float=True)  # 0.6 is read as 0.6
    except ValueError as error:
        raise DataError(
            f"{path} must hold a line of JSON for each step, but does not ({error}): mend or remove it."
        ) from error
    if frame.empty or "step" not in frame.columns:
        raise DataError(f"{path} holds no steps: the cell has not finished.")
    return frame.groupby("step").last()  # a step may have one line for training and one for evaluation
