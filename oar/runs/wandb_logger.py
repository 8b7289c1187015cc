"""A run at Weights & Biases: curves, final scores, completions, histograms of weights, pages, alerts, checkpoints."""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oar.common.errors import ConfigError, DataError, OarError
from oar.common.files import write_text_atomic
from oar.config.learner import TrackingConfig

RUN_ID = "wandb_run_id.txt"
# Of a metric over steps W&B's table of runs shows the last value; of these the one that tells runs apart as well.
SUMMARIES = {"eval/mean/avg@1": "max,last", "train/entropy": "min,last"}


class WandbLogger:
    """A `Logger` whose own files lie under `<folder>/wandb`.

    The W&B run id is kept in the run folder, so that a resumed run goes on in the same W&B run (online), or is a second
    part of it (offline: `wandb sync --append`). Raises ConfigError when `online` has no API key.
    """

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig,
        *,
        job_type: str,
        tags: Sequence[str],
        config: Mapping[str, object],
    ) -> None:
        check_tracking(tracking.mode)
        _keep_wandb_in(folder)
        import wandb  # here, because it reads the environment set above when it is imported

        self._table: wandb.Table | None = None
        online = tracking.mode == "online"
        try:
            self._run = wandb.init(
                entity=tracking.entity,
                project=tracking.project,
                group=tracking.group,
                name=tracking.name or folder.name,
                notes=tracking.notes,
                job_type=job_type,
                tags=[*tags, *tracking.tags],
                config=dict(config),
                mode="online" if online else "offline",
                dir=str(folder),
                id=_run_id(folder),
                resume="allow" if online else None,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            instead = "tracking.mode=offline" if online else "tracking=disabled"
            raise OarError(f"W&B could not start a run ({error}): mend that, or use {instead}.") from error
        # W&B's own step counter cannot go back, which a run resumed from a checkpoint must; ours is the x axis instead.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        for name, kept in SUMMARIES.items():
            self._run.define_metric(name, step_metric="step", summary=kept)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Under the same names."""
        self._run.log({"step": step, **values})

    def samples(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """One W&B table, `samples`, that grows by these rows, and a histogram of their token weights."""
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
        weights = reasoning_weights(rows)
        histogram = {"weights/of_tokens": wandb.Histogram(weights)} if weights else {}
        self._run.log({"step": step, "samples": self._table, **histogram})

    def final(self, step: int, values: Mapping[str, float], rows: Sequence[Mapping[Any, object]]) -> None:
        """Values of the run's summary, which the table of runs sorts by, and a table, `final_evaluation`."""
        import wandb

        table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows], allow_mixed_types=True)
        self._run.log({"step": step, "final_evaluation": table})
        self._run.summary.update(dict(values))

    def page(self, step: int, name: str, path: Path) -> None:
        """To be looked at in a panel, and as an artifact, `<run id>-<name>`: names of artifacts are the project's."""
        import wandb

        self._run.log({"step": step, name.partition("-")[0]: wandb.Html(str(path), inject=False)})
        artifact = wandb.Artifact(f"{self._run.id}-{name}", type="page")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def checkpoint(self, step: int, folder: Path) -> None:
        """A version of the artifact `<run id>-checkpoint`, named by its step."""
        import wandb

        artifact = wandb.Artifact(f"{self._run.id}-checkpoint", type="model", metadata={"step": step})
        artifact.add_dir(str(folder))
        self._run.log_artifact(artifact, aliases=["latest", f"step-{step}"])

    def alert(self, title: str, text: str) -> None:
        """By mail or Slack, as the account has it; an offline run keeps it in its file."""
        self._run.alert(title, text, level="WARN")

    def finish(self) -> None:
        """End the W&B run; online, this waits for uploads."""
        self._run.finish()


def reasoning_weights(rows: Sequence[Mapping[str, object]]) -> list[float]:
    """Of rows of completions the weights of the reasoning tokens; all others weigh 1."""
    found: list[float] = []
    for row in rows:
        weights, segments = row.get("token_weights"), row.get("segments")
        if isinstance(weights, list) and isinstance(segments, list):
            found += weights[: segments[0]]
    return found


def check_tracking(mode: str) -> None:
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
    """The folder's; the first time that of the agent of a W&B sweep, where one started the run."""
    path = folder / RUN_ID
    if not path.exists():
        write_text_atomic(path, os.environ.get("WANDB_RUN_ID", secrets.token_hex(4)) + "\n")
    return path.read_text(encoding="utf-8").strip()
