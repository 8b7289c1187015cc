"""The methods side by side, at W&B or as one page without a network: `python -m experiments.dashboard to=page runs=[outputs]`."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from omegaconf import DictConfig
from plotly.offline import get_plotlyjs

from experiments.dashboard.figures import AXES
from experiments.dashboard.logged import find_runs, read_logged
from experiments.dashboard.page import dashboard_html
from oar.command_line.entry import entry
from oar.common.errors import DataError
from oar.common.files import write_text_atomic
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated
from oar.config.checks import AtLeast, one_of
from oar.runs.folder import has_logged
from oar.runs.wandb_logger import quiet_wandb

PAGE, SCRIPT = "dashboard.html", "plotly.min.js"


@dataclass
class DashboardConfig:
    """See conf/dashboard.yaml."""

    to: str
    title: str
    entity: str | None
    project: str
    group: str | None
    workspace: str | None
    report: str | None
    runs: list[str]
    axis: str
    points: Annotated[int, AtLeast(2)]
    samples: Annotated[int, AtLeast(0)]
    output_dir: str

    def __post_init__(self) -> None:
        one_of("to", self.to, ("wandb", "page"))
        one_of("axis", self.axis, tuple(AXES))


@entry
def main(config: DictConfig) -> None:
    """Read what was logged, write the dashboard."""
    cfg = validated(config, DashboardConfig)
    if cfg.to == "wandb":
        at_wandb(cfg)
    else:
        as_page(cfg)


def at_wandb(cfg: DashboardConfig) -> None:
    """A workspace and a report; both addresses are printed."""
    quiet_wandb()
    # Here, because wandb reads the environment set above when it is imported.
    from experiments.dashboard.wandb_view import read_project, save_report, save_workspace

    project = read_project(cfg.entity, cfg.project, cfg.group)
    workspace = save_workspace(project, cfg.title, cfg.workspace)
    print(f"workspace={workspace}", flush=True)
    report = save_report(project, cfg.title, cfg.report)
    print(f"report={report}")
    print(f"{len(project.configs)} runs in {len(project.lines)} lines; with these two the next call writes over them.")


def as_page(cfg: DashboardConfig) -> None:
    """One HTML page of local runs, and plotly's script beside it."""
    started, git = datetime.now(UTC), git_state(ROOT)
    folders = find_runs(cfg.runs)
    if silent := [str(folder) for folder in folders if not has_logged(folder)]:
        print(f"Not shown, for nothing is logged yet: {', '.join(silent)}")
    runs = [read_logged(folder) for folder in folders if has_logged(folder)]
    if not runs:
        raise DataError("runs must hold a run that has logged a step, but none has yet: wait for the first.")
    made = collect_provenance(asdict(cfg), started=started, git=git)
    path = Path(cfg.output_dir) / PAGE
    text = dashboard_html(
        cfg.title,
        runs,
        folder=path.parent,
        axis=cfg.axis,
        points=cfg.points,
        samples=cfg.samples,
        provenance=made,
    )
    write_text_atomic(path, text)
    write_text_atomic(path.with_name(SCRIPT), get_plotlyjs())
    print(f"{path}: {len(runs)} runs, {len(text) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
