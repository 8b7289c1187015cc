"""What the dashboard asks of W&B, recorded: there is no account here. One process, since W&B's client keeps its first answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.dashboard.logged import find_runs, read_logged
from tests.experiments.wandb_server import ENTITY, KEY, PROJECT, Recording, serving

ROOT = Path(__file__).parents[2]
REAL = ROOT / "results" / "table1"
GROUP = str(OmegaConf.load(REAL / "cells" / "oar_g-seed1" / "config.yaml").tracking.group)
# Each line of what it prints is what one call came to; the key changes on the way.
CALLS = f"""
import json, os
from oar.runs.wandb_logger import quiet_wandb
quiet_wandb()
import wandb
from oar.common.errors import OarError
from experiments.dashboard.wandb_view import read_project, save_report, save_workspace

def call(function, *arguments):
    try:
        found = function(*arguments)
    except OarError as error:
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
    else:
        print(json.dumps(found if isinstance(found, str) else None), flush=True)
        return found

call(read_project, None, "{PROJECT}", None)
os.environ["WANDB_API_KEY"] = "f" * 40
wandb.teardown()
call(read_project, None, "{PROJECT}", None)
os.environ["WANDB_API_KEY"] = "{KEY}"
wandb.teardown()
call(read_project, "{ENTITY}", "missing", None)
call(read_project, None, "{PROJECT}", "paper")
project = call(read_project, None, "{PROJECT}", "{GROUP}")
workspace = call(save_workspace, project, "Title", None)
report = call(save_report, project, "Title", None)
call(save_workspace, project, "Another", workspace)
call(save_report, project, "Another", report)
call(save_workspace, project, "Title", workspace + "x")
os.environ["WANDB_BASE_URL"] = "http://127.0.0.1:9"
wandb.teardown()
call(read_project, None, "{PROJECT}", None)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recording, list[Any]]]:
    """Requests, and what each call came to; the project holds the runs of Table 1 as W&B would have them, and a sweep's cell."""
    runs = []
    for logged in map(read_logged, find_runs([REAL])):
        summary: dict[str, Any] = {name: float(curve.iloc[-1]) for name, curve in logged.metrics.items() if len(curve)}
        if len(summary) > 6:  # the base model logs its accuracy alone
            summary["samples"] = {"_type": "incremental-table-file"}
        runs.append((logged.config, summary | {"_step": 1, "step": 100}))
    config = OmegaConf.to_container(OmegaConf.load(REAL / "cells" / "oar_g-seed1" / "config.yaml"))
    assert isinstance(config, dict)
    config["gating"]["tau"] = 0.9
    runs.append((config, {"train/entropy": 0.5, "seconds/total": 1.0}))
    home = tmp_path_factory.mktemp("home")
    with serving(Recording(runs)) as recording:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
        environment |= {
            "WANDB_BASE_URL": recording.url,
            "HOME": str(home),
            "NETRC": str(home / "netrc"),
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            [sys.executable, "-c", CALLS], env=environment, cwd=home, text=True, capture_output=True, timeout=900
        )
        assert done.returncode == 0, done.stderr
        yield recording, [json.loads(line) for line in done.stdout.splitlines()]


def panels(sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [panel for section in sections for panel in section["panels"]]


def metrics(found: list[dict[str, Any]]) -> set[str]:
    return set(chain.from_iterable(panel["config"].get("metrics", []) for panel in found))


def test_what_cannot_be_is_told_in_one_sentence(recorded: tuple[Recording, list[Any]]) -> None:
    _, (no_key, refused, missing, empty, *_, not_a_view, away) = recorded
    assert {no_key[0], refused[0], missing[0], empty[0], not_a_view[0], away[0]} == {"ConfigError"}
    assert "needs an API key, but there is none: run `wandb login`" in no_key[1]
    assert "must accept the API key, but does not" in refused[1]
    assert f"project {ENTITY}/missing must exist" in missing[1]
    assert f"{ENTITY}/{PROJECT} must hold training runs in the group paper, but has none" in empty[1]
    assert "workspace must be the address of one that was saved before" in not_a_view[1]
    assert "see that the server can be reached" in away[1]
    assert "127.0.0.1:9" in away[1]
    for _, sentence in (no_key, refused, missing, empty, not_a_view, away):
        assert "\n" not in sentence
        assert KEY not in sentence


def test_the_workspace_lines_the_methods_up(recorded: tuple[Recording, list[Any]]) -> None:
    recording, results = recorded
    assert results[5].startswith(f"{recording.url}/{ENTITY}/{PROJECT}?nw=")
    (view,) = recording.saved("project-view")  # the second call wrote over the first
    assert view["displayName"] == "Another"
    assert view["project"]["name"] == PROJECT
    section = view["spec"]["section"]
    sections = section["panelBankConfig"]["sections"]
    assert [one["name"] for one in sections] == [
        "Reward",
        "Accuracy by tier",
        "Policy",
        "Credit",
        "Overhead",
        "Completions",
    ]
    logged = set(chain.from_iterable(json.loads(json.dumps(list(summary))) for _, summary in recording.runs or []))
    shown = panels(sections)
    assert metrics(shown) <= logged
    assert {"train/reward_mean", "eval/words5/avg@1", "train/entropy", "weights/ess_ratio", "seconds/total"} <= metrics(
        shown
    )
    assert [panel["viewType"] for panel in shown].count("Bar Chart") == 2
    assert "samples" in json.dumps(shown[-1]["config"])
    for panel in shown:
        if panel["viewType"] == "Run History Line Plot":
            assert (panel["config"]["xAxis"], panel["config"]["groupAgg"]) == ("step", "mean")
    assert (section["settings"]["xAxis"], section["settings"]["smoothingType"]) == ("step", "average")

    (runs,) = section["runSets"]
    assert runs["grouping"] == [
        {"section": "config", "name": "method.value.name"},
        {"section": "config", "name": "gating.value.tau"},
    ]
    filters = [
        (one["key"]["section"], one["key"]["name"], one["op"], one["value"]) for one in runs["filters"]["filters"]
    ]
    assert filters == [("summary", "seconds/total", ">=", 0), ("run", "group", "=", GROUP)]
    colours = section["customRunColors"]
    assert len(set(colours.values())) == len(colours) == 4
    assert all(runs["id"] in key for key in colours)


def test_the_report_has_the_same_panels(recorded: tuple[Recording, list[Any]]) -> None:
    recording, results = recorded
    assert f"/{ENTITY}/{PROJECT}/reports/" in results[6]
    (view,) = recording.saved("runs")
    assert view["displayName"] == "Another"
    blocks = view["spec"]["blocks"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    workspace = panels(recording.saved("project-view")[0]["spec"]["section"]["panelBankConfig"]["sections"])
    shown = [panel for grid in grids for panel in grid["panelBankSectionConfig"]["panels"]]
    assert [panel["config"].get("chartTitle") for panel in shown] == [
        one["config"].get("chartTitle") for one in workspace
    ]
    assert metrics(shown) == metrics(workspace)
    for grid in grids:
        (runs,) = grid["runSets"]
        assert [one["name"] for one in runs["grouping"]] == ["method.value.name", "gating.value.tau"]
        assert runs["project"] == {"name": PROJECT, "entityName": ENTITY, "id": "1"}
        assert f"{runs['id']}-config:method.value.name:grpo-config:gating.value.tau:0.4" in grid["customRunColors"]
        places = [(panel["layout"]["x"], panel["layout"]["y"]) for panel in grid["panelBankSectionConfig"]["panels"]]
        assert len(set(places)) == len(places)


def test_nothing_else_is_asked_for(recorded: tuple[Recording, list[Any]]) -> None:
    recording, _ = recorded
    asked = [request["operation"] for request in recording.requests]
    known = {
        "Viewer",
        "GetDefaultEntity",
        "Runs",
        "UpsertView2",
        "upsertView",
        "ProjectInternalId",
        "GetProjects",
        "View",
        "SpecificReport",
    }
    assert set(asked) <= known
    assert asked.count("UpsertView2") == asked.count("upsertView") == 2
