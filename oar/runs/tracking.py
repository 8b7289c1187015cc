"""Metrics behind one small interface: local JSON lines always, Weights & Biases in addition.

Three files in the run folder: `metrics.jsonl` (the same configuration twice gives the same bytes), `timings.jsonl`
(seconds differ between identical runs, so they stand apart) and `samples.jsonl`. A line is written before the call
returns.
"""

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from oar.common.errors import ConfigError, DataError, OarError
from oar.common.files import write_text_atomic

Mode = Literal["disabled", "offline", "online"]
METRICS, TIMINGS, SAMPLES = "metrics.jsonl", "timings.jsonl", "samples.jsonl"
RUN_ID = "wandb_run_id.txt"


class Tracker(Protocol):
    """What the learner talks to. `step` is the number of finished training steps; 0 is the model before training."""

    def resume(self, step: int) -> None:
        """Forget what came after `step`, so that the files go on as if nothing had interrupted it; -1 keeps none."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics called `train/...`, `probe/...`, `weights/...`, `eval/<benchmark>/...`; leave out undefined ones."""

    def log_timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """Wall-clock seconds by stage: generation, grading, ..., total."""

    def log_samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Completions to look at, e.g. with their tokens and token weights; the same keys in every row of a run."""

    def log_file(self, name: str, path: Path) -> None:
        """Keep a file that stands in the run folder already, e.g. a page about it, with the run's metrics."""

    def finish(self) -> None:
        """Close files and wait for uploads."""


class LocalTracker:
    """JSON lines in a run folder. Needs `resume` before it adds to lines that an earlier process left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._continued: set[str] = set()

    def resume(self, step: int) -> None:
        """Cut the three files back to `step`, each atomically. Raises DataError on a line that is not ours."""
        for name in (METRICS, TIMINGS, SAMPLES):
            if (self.folder / name).exists():
                _truncate(self.folder / name, step)
            self._continued.add(name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl. Raises DataError naming a metric that is not finite."""
        self._append(METRICS, [{"step": step, **_finite(step, metrics)}])

    def log_timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """Append one line to timings.jsonl."""
        self._append(TIMINGS, [{"step": step, **_finite(step, seconds)}])

    def log_samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Append one line per row to samples.jsonl."""
        self._append(SAMPLES, [{"step": step, **row} for row in rows])

    def log_file(self, name: str, path: Path) -> None:
        """Nothing to do: it is on disk already."""

    def finish(self) -> None:
        """Nothing to do: every line is on disk already."""

    def _append(self, name: str, lines: Sequence[Mapping[str, object]]) -> None:
        path = self.folder / name
        if name not in self._continued and path.exists() and path.stat().st_size:
            raise ConfigError(f"{path} holds the lines of an earlier run: resume it, or choose another run folder.")
        self._continued.add(name)
        try:
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}: a value to be written is not valid JSON ({error}).") from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            raise OarError(
                f"{path} could not be written ({error.strerror or error}): free space and resume."
            ) from error


class WandbTracker:
    """Weights & Biases on top of the local files; its own files lie under `<folder>/wandb`.

    The W&B run id is kept in the run folder, so that a resumed run goes on in the same W&B run (online), or is a second
    part of it (offline: `wandb sync --append`). Raises ConfigError when `online` has no API key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mode: Literal["offline", "online"],
        project: str,
        group: str,
        name: str,
        job_type: str,
        tags: Sequence[str],
        config: Mapping[str, object],
    ) -> None:
        check_tracking(mode)
        _keep_wandb_in(folder)
        import wandb  # here, because it reads the environment set above when it is imported

        self._local = LocalTracker(folder)
        self._table: wandb.Table | None = None
        try:
            self._run = wandb.init(
                project=project,
                group=group,
                name=name,
                job_type=job_type,
                tags=list(tags),
                config=dict(config),
                mode=mode,
                dir=str(folder),
                id=_run_id(folder),
                resume="allow" if mode == "online" else None,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            raise OarError(f"W&B could not start a run ({error}): mend that, or use tracking.mode=offline.") from error
        # W&B's own step counter cannot go back, which a run resumed from a checkpoint must; ours is the x axis instead.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def resume(self, step: int) -> None:
        """Cut the local files back; W&B draws the repeated steps over the old ones."""
        self._local.resume(step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """To metrics.jsonl and W&B, under the same names."""
        self._local.log(step, metrics)
        self._run.log({"step": step, **_finite(step, metrics)})

    def log_timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """To timings.jsonl, and to W&B as `seconds/<stage>`."""
        self._local.log_timings(step, seconds)
        self._run.log({"step": step, **{f"seconds/{name}": value for name, value in _finite(step, seconds).items()}})

    def log_samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """To samples.jsonl and to one W&B table, `samples`, that grows by these rows."""
        self._local.log_samples(step, rows)
        if not rows:
            return
        import wandb

        if self._table is None:
            # An immutable table (W&B's default) keeps only the first rows it was logged with. Cells that hold lists of
            # different lengths are of different types to W&B, hence mixed types.
            columns: list[str | int] = ["step", *rows[0]]
            self._table = wandb.Table(columns=columns, log_mode="INCREMENTAL", allow_mixed_types=True)
        for row in rows:
            if ["step", *row] != self._table.columns:
                raise DataError(f"Sample rows must have the columns {self._table.columns[1:]}, got {list(row)}.")
            self._table.add_data(step, *row.values())
        self._run.log({"step": step, "samples": self._table})

    def log_file(self, name: str, path: Path) -> None:
        """As an artifact of the W&B run, `<run id>-<name>`: names of artifacts are the project's."""
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-{name}", type="page")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        """End the W&B run; online, this waits for uploads."""
        self._local.finish()
        self._run.finish()


def start_tracker(
    folder: Path,
    *,
    mode: Mode,
    project: str,
    group: str,
    name: str,
    job_type: str,
    tags: Sequence[str],
    config: Mapping[str, object],
) -> Tracker:
    """Local files only (`disabled`), or W&B as well (`offline`: no account needed; `online`)."""
    if mode == "disabled":
        return LocalTracker(folder)
    return WandbTracker(
        folder, mode=mode, project=project, group=group, name=name, job_type=job_type, tags=tags, config=config
    )


def check_tracking(mode: Mode) -> None:
    """Raises ConfigError when `online` has no API key; entry points call it before they start any process."""
    if mode != "online":
        return
    quiet_wandb()
    import wandb

    try:
        has_key = wandb.login(prompt=False)  # says whether there is a key, and never asks for an account
    except wandb.Error as error:
        raise ConfigError(f"W&B refuses its API key ({error}): mend it, or use tracking.mode=offline.") from error
    if not has_key:
        raise ConfigError("tracking.mode=online needs a W&B API key: run `wandb login`, or use tracking.mode=offline.")


def quiet_wandb() -> None:
    """No banners and no error reports to W&B; before wandb is imported, which reads this then."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


def _keep_wandb_in(folder: Path) -> None:
    """Staging and cache would go to the home folder otherwise; W&B takes these two from the environment only."""
    quiet_wandb()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["WANDB_DATA_DIR"] = str(folder / "wandb")
    os.environ["WANDB_CACHE_DIR"] = str(folder / "wandb" / "cache")


def _run_id(folder: Path) -> str:
    path = folder / RUN_ID
    if not path.exists():
        write_text_atomic(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()


def _finite(step: int, metrics: Mapping[str, float]) -> dict[str, float]:
    """Plain floats in a fixed order. Raises DataError naming a metric that is NaN or infinite: JSON has neither."""
    values = {name: float(metrics[name]) for name in sorted(metrics)}
    for name, value in values.items():
        if not math.isfinite(value):
            raise DataError(
                f"The metric {name} is {value} at step {step}: training has diverged or the metric is undefined."
            )
    return values


def _truncate(path: Path, step: int) -> None:
    """Keep the lines up to `step`; drop a last line that a kill cut off. Raises DataError on any other broken line."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")  # what follows the last newline was never finished
    kept = []
    for number, line in enumerate(lines, start=1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number} is not a JSON object with a step: mend or delete the line."
            ) from error
    write_text_atomic(path, "".join(kept))
