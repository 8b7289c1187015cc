"""The dashboard at W&B: a saved view of a project's workspace, and a report, with the panels of panels.yaml.

Import it after `oar.runs.tracking.quiet_wandb`. What it builds is seen only in an account; here it is tested against a
recording of the requests it makes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb.sdk import wandb_setup
from wandb.sdk.lib.service.service_connection import WandbApiFailedError
from wandb_workspaces.expr import Config, Metric, Summary

from experiments.dashboard.figures import SMOOTHING
from experiments.dashboard.lines import Line, lines_of
from experiments.dashboard.panels import TOTAL, Panel, Section, metrics_of, sections_of
from oar.common.errors import ConfigError, OarError

STEP = "step"  # the x axis that the tracker gives every metric: W&B's own counter cannot go back
REACH_S = 10.0  # seconds that the server has to answer
RUNSET = "Methods"
COLUMNS = 3  # panels side by side in the workspace
GRID = 24  # width of a report's grid of panels
WIDE, TALL = GRID // 2, 8
AT_THE_END = {
    "tiers": "Accuracy by tier, last point of the learning curve (%)",
    "stages": "Seconds by stage, last step",
}


@dataclass(frozen=True, slots=True)
class Project:
    """Training runs that W&B holds. group: the only one whose runs count, or None; logged: names of what any of them logged."""

    entity: str
    name: str
    group: str | None
    configs: Sequence[Mapping[str, Any]]
    logged: frozenset[str]

    @property
    def lines(self) -> list[Line]:
        """What is compared."""
        return lines_of(self.configs)

    @property
    def keys(self) -> list[str]:
        """Settings by which runs are grouped into lines."""
        return list(self.lines[0].values)

    @property
    def filters(self) -> list[Any]:
        """Which runs are shown; the base model takes no step, and would count as the method whose settings it carries.

        By the summary: a key of nested settings is written otherwise in filters than in groups, and here none can look.
        """
        chosen = [Summary(TOTAL) >= 0]
        return chosen if self.group is None else [*chosen, Metric("Group") == self.group]


def read_project(entity: str | None, name: str, group: str | None) -> Project:
    """What the runs of a W&B project have logged. `entity` None is the account's own.

    Raises ConfigError without a key that W&B accepts, for a project that is not there or has no training runs, and OarError
    where W&B fails on the way.
    """
    sign_in()
    with explained(f"read the project {name}"):
        api = wandb.Api()
        entity = entity or api.default_entity
        if entity is None:
            raise ConfigError(
                "entity must name a W&B account or team, because this key has no default one: set entity."
            )
        try:
            found = list(api.runs(f"{entity}/{name}", filters={"group": group} if group else {}, lazy=False))
        except ValueError as error:
            raise ConfigError(
                f"The W&B project {entity}/{name} must exist, but W&B finds none that this key may read: send runs there "
                "(`wandb sync`), or change entity or project."
            ) from error
    runs = [run for run in found if run.config.get("learner", {}).get("steps", 0) > 0 and "method" in run.config]
    if not runs:
        among = f" in the group {group}" if group else ""
        raise ConfigError(
            f"The W&B project {entity}/{name} must hold training runs{among}, but has none: send some (`wandb sync`), or "
            "change project or group."
        )
    logged = frozenset(name for run in runs for name in run.summary_metrics if not name.startswith("_"))
    return Project(entity, name, group, [run.config for run in runs], logged)


def save_workspace(project: Project, title: str, url: str | None) -> str:
    """Save the view, over the one at `url` where there is one, and say its address."""
    with explained("save the workspace"):
        view = ws.Workspace(entity=project.entity, project=project.name) if url is None else _at(ws.Workspace, url)
        view.name = title
        view.sections = [
            ws.Section(
                name=section.name,
                panels=[made for panel in section.panels for made in panels_of(panel, project.logged)],
                is_open=True,
                layout_settings=ws.SectionLayoutSettings(columns=COLUMNS, rows=-(-len(section.panels) // COLUMNS)),
            )
            for section in sections_of(project.logged)
        ]
        view.settings = ws.WorkspaceSettings(
            x_axis=STEP, smoothing_type="average", smoothing_weight=SMOOTHING, max_runs=100
        )
        view.runset_settings = ws.RunsetSettings(
            filters=project.filters,
            groupby=[Config(key) for key in project.keys],
            group_colors={ws.GroupPath(*_values(line)): line.look.colour for line in project.lines},
        )
        view.save()
    return str(view.url)


def save_report(project: Project, title: str, url: str | None) -> str:
    """Save the report, over the one at `url` where there is one, and say its address."""
    with explained("save the report"):
        report = wr.Report(project.name, project.entity, title) if url is None else _at(wr.Report, url)
        report.title, report.width = title, "fluid"
        report.description = "Reward, accuracy, entropy, credit and overhead of the methods, means over seeds."
        report.blocks = [
            wr.P(
                f"{len(project.configs)} runs in {len(project.lines)} lines: {'; '.join(line.name for line in project.lines)}."
            ),
            wr.TableOfContents(),
            *(block for section in sections_of(project.logged) for block in _blocks(project, section)),
            wr.H2("Token by token"),
            wr.P(
                "`make inspect` writes a page of one training step; of a run with W&B on it is an artifact of the type page."
            ),
        ]
        report.save()
    return str(report.url)


def panels_of(panel: Panel, logged: frozenset[str]) -> list[Any]:
    """A panel as W&B draws it; where that differs from the page without a network, its title says so."""
    metrics: list[Any] = [*metrics_of(panel, logged)]
    match panel.kind:
        case "curve":
            curve = wr.LinePlot(
                title=panel.title,
                title_y=panel.about,
                x=STEP,
                y=metrics,
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
                smoothing_type="average",
                smoothing_factor=SMOOTHING,
            )
            return [curve]
        case "tiers" | "stages":
            return [wr.BarPlot(title=AT_THE_END[panel.kind], metrics=metrics, orientation="v", groupby_aggfunc="mean")]
        case _:
            return [wr.WeavePanelSummaryTable(table_name=panel.metric)]


def sign_in() -> None:
    """Raises ConfigError where W&B cannot be reached, without a key, and where W&B does not accept it."""
    url = str(wandb_setup.singleton().settings.base_url)
    try:
        # First of all: a client that has lost its server may not end for ten minutes, at the end of the program.
        urlopen(url, timeout=REACH_S).close()
    except HTTPError:
        pass  # it answers
    except OSError as error:
        raise ConfigError(
            f"W&B must answer at {url}, but does not ({error}): see that the server can be reached (WANDB_BASE_URL)."
        ) from error
    with explained("sign in"):
        try:
            has_key = wandb.login(prompt=False)  # says whether there is a key, and never asks for an account
        except wandb.errors.AuthenticationError as error:
            raise ConfigError(
                f"W&B must accept the API key, but does not ({_sentence(error)}): mend WANDB_API_KEY or run `wandb login`."
            ) from error
    if not has_key:
        raise ConfigError(
            "The dashboard at W&B needs an API key, but there is none: run `wandb login` or set WANDB_API_KEY; without an "
            "account `make dashboard-local` draws the same panels."
        )


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """OarError in place of what W&B's client raises where the service is away or says no."""
    try:
        yield
    except (wandb.Error, WandbApiFailedError) as error:
        raise OarError(f"W&B could not {doing} ({_sentence(error)}): mend that, and run this again.") from error


def _at(kind: Any, url: str) -> Any:
    try:
        return kind.from_url(url)
    except (ValueError, AttributeError, IndexError) as error:
        what = kind.__name__.lower()
        raise ConfigError(
            f"{what} must be the address of one that was saved before, but is {url} ({error})."
        ) from error


def _blocks(project: Project, section: Section) -> list[Any]:
    made = [one for panel in section.panels for one in panels_of(panel, project.logged)]
    for at, one in enumerate(made):
        one.layout = wr.Layout(x=WIDE * (at % 2), y=TALL * (at // 2), w=WIDE, h=TALL)
    runset = wr.Runset(
        entity=project.entity,
        project=project.name,
        name=RUNSET,
        filters=project.filters,
        groupby=[f"config.{key}" for key in project.keys],
    )
    colours: dict[Any, Any] = {
        wr.RunsetGroup(
            RUNSET,
            tuple(
                wr.RunsetGroupKey(wr.Config(key), value) for key, value in zip(project.keys, _values(line), strict=True)
            ),
        ): line.look.colour
        for line in project.lines
    }
    return [wr.H2(section.name), wr.PanelGrid(runsets=[runset], panels=made, custom_run_colors=colours)]


def _values(line: Line) -> list[str]:
    return [str(value) for value in line.values.values()]


def _sentence(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
