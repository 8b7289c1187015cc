"""The panels of a dashboard (panels.yaml), one definition for W&B and for the page without a network.

Metrics go by the names under which a run logs them to W&B (oar/runs/tracking.py): those of metrics.jsonl, `seconds/<stage>` of
timings.jsonl, and the table `samples`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf

from oar.evaluation.evaluate import MEAN

SAMPLES = "samples"
SECONDS = "seconds/"
TOTAL = f"{SECONDS}total"
STAGES = ("generation", "grading", "scoring", "importance", "update", "sync")  # of a training step, in its order


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. metric: as it is logged; title and about: for people, with its unit; see panels.yaml."""

    metric: str
    title: str
    about: str
    kind: Literal["curve", "tiers", "stages", "samples"] = "curve"


@dataclass(frozen=True, slots=True)
class Section:
    """Panels that answer one question."""

    name: str
    panels: Sequence[Panel]


def all_sections() -> list[Section]:
    """As panels.yaml has them."""
    found: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("panels.yaml")))
    return [Section(name, [Panel(**panel) for panel in panels]) for name, panels in found.items()]


def sections_of(logged: Iterable[str]) -> list[Section]:
    """The sections with what was logged: a panel without its metric is left out, one of `*` is made for each that is there."""
    names = sorted(set(logged))
    found = []
    for section in all_sections():
        panels = [one for panel in section.panels for one in _expanded(panel, names)]
        if panels:
            found.append(Section(section.name, panels))
    return found


def metrics_of(panel: Panel, logged: Iterable[str]) -> list[str]:
    """The names that a panel shows; of tiers without their mean, of stages those of a training step, in its order."""
    names = sorted(name for name in set(logged) if _matches(panel.metric, name))
    if panel.kind == "tiers":
        return [name for name in names if benchmark_of(name) != MEAN]
    if panel.kind == "stages":
        return [f"{SECONDS}{stage}" for stage in STAGES if f"{SECONDS}{stage}" in names]
    return names


def benchmark_of(metric: str) -> str:
    """words1 of eval/words1/avg@1."""
    return metric.split("/")[1]


def _expanded(panel: Panel, names: Sequence[str]) -> list[Panel]:
    shown = metrics_of(panel, names)
    if panel.kind != "curve" or "*" not in panel.metric:
        return [panel] if shown else []
    if "{}" in panel.title:
        shown = [name for name in shown if benchmark_of(name) != MEAN]
        return [Panel(name, panel.title.format(benchmark_of(name)), panel.about) for name in shown]
    return [Panel(name, panel.title, panel.about) for name in shown]


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), name) is not None
