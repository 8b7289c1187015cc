"""What a dashboard compares, and the page without a network that shows it."""

import json
import re
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest

from experiments.dashboard.__main__ import DashboardConfig, as_page
from experiments.dashboard.page import averages, dashboard_html, find_runs, page_data, read_logged
from experiments.dashboard.runs import SAMPLES, SECTIONS, lines_of, metrics_of, other_differences, sections_of
from oar.analysis.reports.figures import COLOURS
from oar.analysis.reports.html import WEB
from oar.common.errors import ConfigError
from oar.config import validated
from tests.config.test_config import composed
from tests.experiments.dashboard_runs import small_runs
from tests.experiments.inspector_pages import ATTACK
from tests.experiments.test_inspector import Elements

REAL = Path(__file__).parents[2] / "results" / "embedded"


def settings(method: str, seed: int = 1, steps: int = 100, **gating: object) -> dict:
    return {
        "seed": seed,
        "output_dir": f"outputs/{method}-{seed}",
        "method": {"name": method},
        "gating": {"tau": 0.4, **gating},
        "learner": {"steps": steps, "lr": 1e-4},
        "rollout": {"url": f"http://127.0.0.1:{9000 + seed}"},
    }


def test_every_panel_shows_something_that_real_runs_log() -> None:
    logged = {*chain.from_iterable(read_logged(folder).metrics for folder in find_runs([REAL])), SAMPLES}
    for section in SECTIONS:
        for panel in section.panels:
            assert metrics_of(panel, logged), f"nothing logs {panel.metric}"
    found = {panel.title: panel.metric for section in sections_of(logged) for panel in section.panels}
    assert found["Accuracy, words3"] == "eval/words3/avg@1"
    assert found["Accuracy, mean of the tiers"] == "eval/mean/avg@1"
    assert found["Policy entropy"] == "train/entropy"
    assert "Accuracy, mean" not in found
    assert found["Seconds of a training step, by stage"] == "seconds/*"


def test_a_panel_without_its_metric_is_left_out() -> None:
    found = sections_of(
        ["train/entropy", "eval/gsm8k/avg@1", "seconds/sync", "seconds/generation", "seconds/evaluation"]
    )
    assert [(section.name, [panel.kind for panel in section.panels]) for section in found] == [
        ("Accuracy by tier", ["tiers", "curve"]),
        ("Policy", ["curve"]),
        ("Overhead", ["stages", "curve"]),
    ]
    stages = found[-1].panels[0]
    assert metrics_of(stages, ["seconds/sync", "seconds/generation", "seconds/evaluation", "seconds/total"]) == [
        "seconds/generation",
        "seconds/sync",
    ]


def test_runs_that_differ_in_their_seed_alone_are_one_line() -> None:
    configs = [
        settings("oar_p", 2),
        settings("grpo", 1),
        settings("entropy"),
        settings("grpo", 2),
        settings("grpo", 3, steps=0),
        settings("oar_p", 1),
    ]
    lines = lines_of(configs)
    assert [(line.name, list(line.runs)) for line in lines] == [
        ("Base model", [4]),
        ("GRPO", [1, 3]),
        ("OAR-P", [0, 5]),
        ("entropy (control)", [2]),
    ]
    # As in the figures beside Table 1, whichever methods are there.
    assert [line.colour for line in lines] == [COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[4]]
    assert other_differences(configs) == []


def test_a_sweep_has_a_line_for_each_setting() -> None:
    configs = [settings("oar_g", seed, tau=tau) for tau in (0.9, 0.05, 0.1) for seed in (1, 2)] + [settings("grpo")]
    lines = lines_of(configs)
    assert [line.name for line in lines] == ["GRPO, tau 0.4", "OAR-G, tau 0.05", "OAR-G, tau 0.1", "OAR-G, tau 0.9"]
    assert [list(line.runs) for line in lines] == [[6], [2, 3], [4, 5], [0, 1]]
    assert lines[1].values == {"method.name": "oar_g", "gating.tau": 0.05}
    assert len({line.look for line in lines}) == 4
    assert other_differences(configs) == ["gating.tau"]
    many = lines_of([settings("oar_g", tau=tau / 100) for tau in range(20)])
    assert len({(line.colour, line.marker, line.dash) for line in many}) == 20
    assert other_differences([settings("grpo"), settings("oar_g") | {"learner": {"steps": 9, "lr": 0.1}}]) == [
        "learner.lr"
    ]


def test_a_long_curve_is_drawn_by_the_means_of_stretches() -> None:
    curve = pd.Series([1.0, 2, 3, 4, 5, 6, 7], index=range(10, 17))
    assert averages(curve, 7) is curve
    assert averages(curve, 3).to_dict() == {11: 2.0, 14: 4.5, 16: 6.5}  # of 3, 2 and 2 points


def test_the_pages_numbers_by_hand(tmp_path: Path) -> None:
    runs = [read_logged(folder) for folder in find_runs([small_runs(tmp_path), tmp_path / "grpo-seed1"])]
    data = json.loads(json.dumps(page_data("Title", runs, folder=tmp_path / "page", points=100, samples=1)))
    steps, lines = data["steps"], data["lines"]
    assert [line["name"] for line in lines] == ["GRPO, tau 0.4", "OAR-G, tau 0.2", "OAR-G, tau 0.4"]
    panels = {
        panel["metric"] if panel["kind"] == "curve" else panel["kind"]: panel
        for one in data["sections"]
        for panel in one["panels"]
    }

    mean, seeds = (panels["train/reward_mean"]["curves"][0][key] for key in ("mean", "seeds"))
    assert (steps[mean[0]], mean[1]) == ([1, 2], [0.2, 0.3])  # the steps that both seeds have
    assert [(place, steps[axis], values) for place, axis, values in seeds] == [
        (0, [1, 2, 3], [0.1, 0.2, 0.6]),
        (1, [1, 2], [0.3, 0.4]),
    ]
    assert panels["train/reward_mean"]["curves"][1]["mean"][1] == [0.9, 0.8, 0.7], (
        "a line that is being written is not read"
    )
    assert panels["seconds/total"]["curves"][1] is None
    assert lines[0]["runs"][0]["time"][1] == [1, 3, 6]
    assert [run["finished"] for line in lines for run in line["runs"]] == [True, True, False, True]

    assert "tiers" not in panels, "none on the curve"
    assert data["notes"] == ["These runs do not differ in the method alone: gating.tau."]
    kept = data["samples"]
    assert [(one["problem"], one["line"], one["weights"], one["step"]) for one in kept] == [
        ("p1", 0, [1, 1, 1, 1], 3),  # the problem that both have, though another stands first
        ("p1", 2, [0.1, 1.2, 2.4, 0.3], 2),
    ]
    assert [one["link"] for one in kept] == [None, "../sweep/oar_g-seed1/inspector/step_000002.html"]


def test_tables_and_stages_by_hand(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    for at, run in enumerate(("grpo-seed1", "grpo-seed2", "sweep/oar_g-seed1")):
        lines = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
        lines[1] |= {"eval/words1/avg@1": 50.0 + at, "eval/words2/avg@1": 10.0 * at, "eval/mean/avg@1": 30.0}
        lines[0] |= {"eval/words1/avg@1": 0.0}
        (folder / run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / run / "timings.jsonl").write_text(
            "".join(
                json.dumps({"step": step, "generation": 1.0 + at, "update": step, "total": 9.0 + at}) + "\n"
                for step in (1, 2, 3)
            )
        )
    runs = [read_logged(one) for one in find_runs([folder])]
    data = page_data("Title", runs, folder=folder, points=100, samples=1)
    panels = {panel["kind"]: panel for one in data["sections"] for panel in one["panels"]}
    sampled, greedy, curve = panels["tiers"]["tables"]
    assert sampled["name"] == "Final evaluation, avg@4 (sampled at temperature 1)"
    assert sampled["columns"] == curve["columns"] == ["words1", "words2", "mean"]
    # words1 75 and 100: mean 87.5, standard error |100 - 75| / 2
    assert sampled["rows"][0] == [[87.5, 12.5, [75, 100]], [25, 0, [25, 25]], [56.25, 6.25, [50, 62.5]]]
    assert sampled["rows"][1] == [None, None, None], "not finished"
    assert greedy["rows"][2][0] == [100, None, [100]], "one seed has no standard error"
    assert curve["rows"][0][:2] == [[50.5, 0.5, [50, 51]], [5, 5, [0, 10]]]
    stages = panels["stages"]
    assert (stages["stages"], stages["reference"]) == (["generation", "update"], 0)
    assert stages["medians"] == [[1.5, 2, 9.5], [None, None, None], [3, 2, 11]]


def test_runs_are_found_wherever_they_lie(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    everything = ["grpo-seed1", "grpo-seed2", "sweep/more/oar_g-seed1", "sweep/oar_g-seed1"]
    assert [one.relative_to(folder).as_posix() for one in find_runs([folder])] == everything
    assert find_runs([folder / "grpo-seed1"]) == [folder / "grpo-seed1"]
    assert len(find_runs([folder, folder / "sweep"])) == 4
    assert len(find_runs([REAL])) == 12
    with pytest.raises(ConfigError, match=r"runs must name folders, but .*nowhere is none"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="holds none: train one"):
        find_runs([WEB])


def test_completions_of_another_version_are_named_and_left_out(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    (folder / "grpo-seed1" / "samples.jsonl").write_text('{"step": 1, "completion": "5"}\n')
    data = page_data("Title", [read_logged(one) for one in find_runs([folder])], folder=folder, points=9, samples=4)
    assert {one["run"] for one in data["samples"]} == {"oar_g-seed1"}
    assert any("Completions of grpo-seed1 are left out" in note for note in data["notes"])


def test_the_page_is_whole_small_and_holds_text_as_text(tmp_path: Path) -> None:
    runs = [read_logged(folder) for folder in find_runs([small_runs(tmp_path)])]
    text = dashboard_html(ATTACK, runs, folder=tmp_path, points=100, samples=4, provenance={"command": ATTACK})
    elements = Elements(text)
    assert elements.tags.count("script") == 2
    assert "img" not in elements.tags
    assert not [value for one in elements.attributes for name, value in one.items() if name in ("src", "href")]
    policy = next(one["content"] for one in elements.attributes if one.get("http-equiv") == "Content-Security-Policy")
    assert re.fullmatch(r"default-src 'none'; script-src 'sha256-[^ ]+'; style-src 'sha256-[^ ]+'", str(policy))
    real = [read_logged(folder) for folder in find_runs([REAL])]
    page = dashboard_html("Real", real, folder=tmp_path, points=500, samples=4, provenance={})
    assert len(page) < 250_000
    assert len(dashboard_html("Real", real, folder=tmp_path, points=20, samples=4, provenance={})) < 100_000


def test_weights_are_coloured_as_the_inspector_colours_them() -> None:
    mine = re.search(r"WEIGHTS = (\[.*?\])", (WEB / "dashboard.js").read_text())
    its = re.search(r"weight: \{ edges: (\[.*?\])", (WEB / "inspector.js").read_text())
    assert mine is not None
    assert its is not None
    assert mine[1] == its[1]


def test_the_entry_point_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_runs(tmp_path / "runs")
    cfg = validated(
        composed("to=page", f"runs=[{tmp_path / 'runs'}]", f"output_dir={tmp_path / 'out'}", name="dashboard"),
        DashboardConfig,
    )
    as_page(cfg)
    assert "4 runs" in capsys.readouterr().out
    assert "OAR methods" in (tmp_path / "out" / "dashboard.html").read_text()
    for wrong, says in (
        ("to=paper", "to must be"),
        ("points=1", "points must be 2 or more"),
        ("samples=-1", "samples must be 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            validated(composed(wrong, name="dashboard"), DashboardConfig)
