"""Metrics behind one small interface: local JSON lines always, and loggers such as Weights & Biases in addition.

Three files in the run folder: `metrics.jsonl` (the same configuration twice gives the same bytes), `timings.jsonl`
(seconds differ between identical runs, so they stand apart) and `samples.jsonl`. A line is written before the call
returns.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from oar.common.errors import ConfigError, DataError, OarError
from oar.common.files import write_text_atomic
from oar.config.learner import TrackingConfig
from oar.runs.wandb_logger import WandbLogger, check_tracking
from oar.runs.watch import Watch

METRICS, TIMINGS, SAMPLES = "metrics.jsonl", "timings.jsonl", "samples.jsonl"


class Logger(Protocol):
    """One more place for what a run tells, after the local files. Where it has no place for something it does nothing."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics and `seconds/<stage>` of a step."""

    def samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Completions, one at least."""

    def final(self, step: int, values: Mapping[str, float], rows: Sequence[Mapping[Any, object]]) -> None:
        """The final evaluation: `final/<benchmark>/<metric>`, and its table."""

    def page(self, step: int, name: str, path: Path) -> None:
        """An HTML page in the run's folder."""

    def checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint, to be kept."""

    def alert(self, title: str, text: str) -> None:
        """Something that a person should look at."""

    def finish(self) -> None:
        """Wait for what is on its way."""


class Tracker:
    """What the learner talks to. `step` is the number of finished training steps; 0 is the model before training.

    It needs `resume` before it adds to lines that an earlier process left in the folder.
    """

    def __init__(self, folder: Path, loggers: Sequence[Logger] = (), watch: Watch | None = None) -> None:
        self.folder = folder
        self.loggers = loggers
        self.watch = watch
        self._continued: set[str] = set()

    def resume(self, step: int) -> None:
        """Cut the three files back to `step` (-1 keeps nothing), as if nothing had interrupted the run; each atomically.

        Raises DataError on a line that is not ours.
        """
        for name in (METRICS, TIMINGS, SAMPLES):
            if (self.folder / name).exists():
                _truncate(self.folder / name, step)
            self._continued.add(name)
        if self.watch is not None and (self.folder / METRICS).exists():
            for line in (self.folder / METRICS).read_text(encoding="utf-8").splitlines():
                self.watch.look(step, json.loads(line))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics called `train/...`, `probe/...`, `weights/...`, `eval/<benchmark>/...`; leave out undefined ones.

        Raises DataError naming a metric that is not finite.
        """
        values = _finite(step, metrics)
        self._append(METRICS, [{"step": step, **values}])
        for logger in self.loggers:
            logger.scalars(step, values)
        for title, text in (self.watch.look(step, values) if self.watch else {}).items():
            for logger in self.loggers:
                logger.alert(title, text)

    def log_timings(self, step: int, seconds: Mapping[str, float]) -> None:
        """Wall-clock seconds by stage: generation, grading, ..., total; to loggers as `seconds/<stage>`."""
        values = _finite(step, seconds)
        self._append(TIMINGS, [{"step": step, **values}])
        for logger in self.loggers:
            logger.scalars(step, {f"seconds/{name}": value for name, value in values.items()})

    def log_samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Completions to look at, e.g. with their tokens and token weights; the same keys in every row of a run."""
        self._append(SAMPLES, [{"step": step, **row} for row in rows])
        for logger in self.loggers if rows else ():
            logger.samples(step, rows)

    def log_final(self, step: int, metrics: Mapping[str, float], rows: Sequence[Mapping[Any, object]]) -> None:
        """The final evaluation, which evaluation.csv holds: `eval/...` as metrics, and its table."""
        values = {name.replace("eval/", "final/", 1): value for name, value in _finite(step, metrics).items()}
        for logger in self.loggers:
            logger.final(step, values, rows)

    def log_page(self, step: int, name: str, path: Path) -> None:
        """An HTML page that stands in the run folder already, e.g. `inspector-step_000010`."""
        for logger in self.loggers:
            logger.page(step, name, path)

    def log_checkpoint(self, step: int, folder: Path) -> None:
        """A checkpoint that stands in the run folder."""
        for logger in self.loggers:
            logger.checkpoint(step, folder)

    def finish(self) -> None:
        """Wait for uploads; on disk every line is already."""
        for logger in self.loggers:
            logger.finish()

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


def start_tracker(
    folder: Path,
    tracking: TrackingConfig,
    *,
    job_type: str,
    tags: Sequence[str],
    config: Mapping[str, object],
    max_logprob_diff: float,
) -> Tracker:
    """Local files; W&B unless its mode is `disabled` (`offline` needs no account); TensorBoard where it is asked for."""
    loggers: list[Logger] = []
    if tracking.mode != "disabled":
        check_tracking(tracking.mode)
        loggers.append(WandbLogger(folder, tracking, job_type=job_type, tags=tags, config=config))
    if tracking.tensorboard:
        from oar.runs.tensorboard_logger import TensorBoardLogger  # here, for it needs a package that few ask for

        loggers.append(TensorBoardLogger(folder))
    return Tracker(folder, loggers, Watch(max_logprob_diff) if loggers else None)


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
