"""What a dashboard compares, and the page without a network that shows it."""

import json
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import expect, sync_playwright
from plotly.offline import get_plotlyjs

from experiments.dashboard.__main__ import DashboardConfig, as_page
from experiments.dashboard.figures import SYMBOLS, averages, curves_figure, smoothed, stages_figure
from experiments.dashboard.lines import lines_of, other_differences
from experiments.dashboard.logged import Logged, find_runs, read_logged
from experiments.dashboard.page import dashboard_html
from experiments.dashboard.panels import SAMPLES, Panel, all_sections, metrics_of, sections_of
from experiments.dashboard.samples import last_samples
from experiments.dashboard.tables import stage_medians, stage_table, tier_tables
from oar.analysis.reports.methods import LOOKS, look
from oar.common.errors import ConfigError, DataError
from oar.config import validated
from tests.config.test_config import composed
from tests.experiments.dashboard_runs import small_runs
from tests.experiments.inspector_pages import ATTACK, sample
from tests.experiments.made_runs import make_run
from tests.experiments.test_inspector import Elements
from tests.experiments.test_inspector_browser import CHROMIUM, QUIET

REAL = Path(__file__).parents[2] / "results" / "table1"


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
    for section in all_sections():
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
    assert [line.look for line in lines] == [look(name) for name in ("base", "grpo", "oar_p", "entropy")]
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
    assert len({(line.look.colour, line.look.marker) for line in many}) == 20
    assert other_differences([settings("grpo"), settings("oar_g") | {"learner": {"steps": 9, "lr": 0.1}}]) == [
        "learner.lr"
    ]


def test_a_long_curve_is_drawn_by_the_means_of_stretches() -> None:
    curve = pd.Series([1.0, 2, 3, 4, 5, 6, 7], index=range(10, 17))
    assert averages(curve, 7) is curve
    assert averages(curve, 3).to_dict() == {11: 2.0, 14: 4.5, 16: 6.5}  # of 3, 2 and 2 points


def curves(
    runs: list[Logged], metric: str, axis: str = "step"
) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """x and y of every line of a panel, by the line that it belongs to and its own name."""
    figure = curves_figure([Panel(metric, "", "")], lines_of([one.config for one in runs]), runs, axis=axis, points=100)
    return {
        (trace.legendgroup, trace.name): ([round(float(x), 6) for x in trace.x], [round(float(y), 6) for y in trace.y])
        for trace in figure.data
    }


def test_a_thick_line_is_the_smoothed_mean_and_thin_ones_are_the_seeds(tmp_path: Path) -> None:
    found = curves([read_logged(folder) for folder in find_runs([small_runs(tmp_path)])], "train/reward_mean")
    assert found["GRPO, tau 0.4", "grpo-seed1"] == ([1, 2, 3], [0.1, 0.2, 0.6])
    assert found["GRPO, tau 0.4", "grpo-seed2"] == ([1, 2], [0.3, 0.4])
    # Of the steps that both seeds have, 0.2 and 0.3; the window is wider than the run.
    assert found["GRPO, tau 0.4", "GRPO, tau 0.4"] == ([1, 2], [0.25, 0.25])
    # A line of metrics.jsonl that is being written is not read.
    assert found["OAR-G, tau 0.2", "oar_g-seed1"] == ([1, 2, 3], [0.9, 0.8, 0.7])


def test_what_is_drawn_has_the_look_of_the_one_table() -> None:
    runs = [read_logged(folder) for folder in find_runs([REAL])]
    lines = lines_of([one.config for one in runs])
    drawn = curves_figure([Panel("eval/mean/avg@1", "", "")], lines, runs, axis="step", points=100).data
    by_label = {one.label: one for one in LOOKS.values()}
    means = {trace.name: trace for trace in drawn if trace.mode == "lines+markers"}
    assert set(means) == {"Base model", "GRPO", "OAR-G", "OAR-P"}
    for name, trace in means.items():
        assert (trace.line.color, trace.marker.symbol) == (by_label[name].colour, SYMBOLS[by_label[name].marker])


def test_time_is_the_sum_of_training_steps(tmp_path: Path) -> None:
    found = curves([read_logged(folder) for folder in find_runs([small_runs(tmp_path)])], "train/reward_mean", "time")
    assert found["GRPO, tau 0.4", "grpo-seed1"][0] == [round(second / 60, 6) for second in (1, 3, 6)]
    # The seeds need 1, 2 and 3, 2 seconds: after two steps 3 and 5, on average 4.
    assert found["GRPO, tau 0.4", "GRPO, tau 0.4"][0] == [round(second / 60, 6) for second in (2, 4)]
    assert found["OAR-G, tau 0.2", "OAR-G, tau 0.2"] == ([], []), "without seconds a run has no place in time"


def test_smoothing_is_a_centred_running_mean_that_leaves_distant_points() -> None:
    curve = pd.Series([0.9, 0.8, 0.7, 0.1], index=[1, 2, 3, 20])
    assert smoothed(curve, 3).round(6).to_dict() == {1: 0.85, 2: 0.8, 3: 0.75, 20: 0.1}


def test_the_base_model_is_a_line_along_the_others_steps() -> None:
    runs = [read_logged(folder) for folder in find_runs([REAL])]
    found = curves(runs, "eval/mean/avg@1")
    starts = [values[0] for (line, name), (_, values) in found.items() if line == "Base model" != name]
    x, values = found["Base model", "Base model"]
    assert x == [0, 100]
    assert values == [pytest.approx(sum(starts) / 3, abs=1e-4)] * 2
    assert len({x for x, *_ in [found["GRPO", "GRPO"]] for x in x}) == 11, "evaluations are not smoothed away"


def test_tables_and_stages_by_hand(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    for at, run in enumerate(("grpo-seed1", "grpo-seed2", "sweep/oar_g-seed1")):
        logged = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
        logged[1] |= {"eval/words1/avg@1": 50.0 + at, "eval/words2/avg@1": 10.0 * at, "eval/mean/avg@1": 30.0}
        logged[0] |= {"eval/words1/avg@1": 0.0}
        (folder / run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
        (folder / run / "timings.jsonl").write_text(
            "".join(
                json.dumps({"step": step, "generation": 1.0 + at, "update": step, "total": 9.0 + at}) + "\n"
                for step in (1, 2, 3)
            )
        )
    runs = [read_logged(one) for one in find_runs([folder])]
    lines = lines_of([one.config for one in runs])
    tables = tier_tables(runs, lines, ["eval/words1/avg@1", "eval/words2/avg@1"])
    assert next(iter(tables)).startswith("Final evaluation, avg@4 (sampled at temperature 1)")
    sampled, greedy, curve = tables.values()
    assert list(sampled) == list(curve) == ["words1", "words2", "mean", "seeds"]
    # words1 75 and 100: mean 87.5, standard error |100 - 75| / 2; OAR-G with tau 0.2 has not finished
    assert list(sampled.index) == ["GRPO, tau 0.4", "OAR-G, tau 0.4"]
    assert sampled.iloc[0].tolist() == ["87.5 ± 12.5", "25.0 ± 0.0", "56.2 ± 6.2", "2"]
    assert greedy.iloc[1].tolist()[:2] == ["100.0", "50.0"], "one seed has no standard error"
    assert curve.iloc[0].tolist()[:2] == ["50.5 ± 0.5", "5.0 ± 5.0"]
    medians = stage_medians(runs, lines, ["seconds/generation", "seconds/update"])
    assert medians.to_dict("index") == {
        "GRPO, tau 0.4": {"generation": 1.5, "update": 2, "seconds/total": 9.5},
        "OAR-G, tau 0.4": {"generation": 3, "update": 2, "seconds/total": 11},
    }
    stages = stage_table(medians, lines)
    assert list(stages) == ["generation", "update", "whole step", "of GRPO's"]
    assert stages.loc["OAR-G, tau 0.4"].tolist() == ["3", "2", "11", "1.16x"]
    assert {bar.name: list(bar.x) for bar in stages_figure(medians).data} == {"generation": [1.5, 3], "update": [2, 2]}


def test_completions_of_one_problem_stand_together(tmp_path: Path) -> None:
    runs = [read_logged(folder).run for folder in find_runs([small_runs(tmp_path)])]
    lines = lines_of([read_logged(run.folder).config for run in runs])
    problems, notes = last_samples(runs, lines, 1, tmp_path / "page")
    assert notes == []
    (shown,) = problems  # the problem that both runs have, though another stands first
    assert [(one.sample.problem, one.line, one.step, one.link) for one in shown] == [
        ("p1", "GRPO, tau 0.4", 3, None),
        ("p1", "OAR-G, tau 0.4", 2, "../sweep/oar_g-seed1/inspector/step_000002.html"),
    ]
    first, second, *_, answer, end = shown[1].tokens
    assert (first[0].strip(), first[1]) == ("Two", "weight 0.1, token advantage 0.05")
    assert "230 159 0" in first[2], "suppressed"
    assert "0 114 178" in second[2], "boosted"
    assert (answer[1:], end[1:]) == (("answer, not weighted", ""), ("not weighted", ""))


def test_a_run_that_begins_again_is_shown_without_its_seconds(tmp_path: Path) -> None:
    """Cut back to the evaluation before its first step, it has a file of timings without a line."""
    run = small_runs(tmp_path) / "grpo-seed1"
    (run / "timings.jsonl").write_text("")
    assert set(read_logged(run).metrics) == {"train/entropy", "train/reward_mean"}
    (run / "metrics.jsonl").write_text('{"step": 1, "train/entropy": 1.0}\n{"st\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl must hold a line of JSON for each step"):
        read_logged(run)
    (run / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(DataError, match=r"but names no method\.name: leave .* out of runs"):
        read_logged(run)


def test_right_is_what_is_graded_right_whatever_it_earns(tmp_path: Path) -> None:
    """A length term pays for a wrong answer too."""
    folder = small_runs(tmp_path)
    for reward, correct, told in ((0.25, False, "✗ wrong, reward 0.25"), (0.0, True, "✓ right, reward 0")):
        kept = sample(["Two", "####", "5"], [1, 2, 3], reward=reward, correct=correct)
        (folder / "grpo-seed1" / "samples.jsonl").write_text(json.dumps({"step": 3, **asdict(kept)}) + "\n")
        runs = [read_logged(folder / "grpo-seed1")]
        page = dashboard_html("", runs, folder=folder, axis="step", points=9, samples=1, provenance={})
        assert told in page


def test_a_run_that_was_made_twice_is_told(tmp_path: Path) -> None:
    """Two runs of one seed say nothing of the spread over seeds."""
    small_runs(tmp_path)
    make_run(tmp_path / "again", "grpo", 1, {"words1": [1.0, 0.5], "words2": [0.0, 0.5]})

    def told(folders: list[Path]) -> bool:
        runs = [read_logged(folder) for folder in folders]
        page = dashboard_html("", runs, folder=tmp_path, axis="step", points=9, samples=1, provenance={})
        return "GRPO, tau 0.4 has more runs than seeds" in page

    assert told(find_runs([tmp_path]))
    assert not told([folder for folder in find_runs([tmp_path]) if "again" not in folder.parts])


def test_runs_are_found_wherever_they_lie(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    everything = ["grpo-seed1", "grpo-seed2", "sweep/more/oar_g-seed1", "sweep/oar_g-seed1"]
    assert [one.relative_to(folder).as_posix() for one in find_runs([folder])] == everything
    assert find_runs([folder / "grpo-seed1"]) == [folder / "grpo-seed1"]
    assert len(find_runs([folder, folder / "sweep"])) == 4
    assert len(find_runs([REAL])) == 12
    with pytest.raises(ConfigError, match=r"runs must name folders, but .*nowhere is none"):
        find_runs([tmp_path / "nowhere"])
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds none: train one"):
        find_runs([folder / "empty"])


def test_completions_of_another_version_are_named_and_left_out(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    (folder / "grpo-seed1" / "samples.jsonl").write_text('{"step": 1, "completion": "5"}\n')
    runs = [read_logged(one) for one in find_runs([folder])]
    problems, notes = last_samples([one.run for one in runs], lines_of([one.config for one in runs]), 4, folder)
    assert {one.run for shown in problems for one in shown} == {"oar_g-seed1"}
    assert any("Completions of grpo-seed1 are left out" in note for note in notes)


def test_what_is_0_throughout_is_said_and_not_drawn(tmp_path: Path) -> None:
    runs = [read_logged(folder) for folder in find_runs([REAL])]
    text = dashboard_html("Real", runs, folder=tmp_path, axis="step", points=9, samples=1, provenance={})
    assert "0 at every step of every run: KL to the policy that drew, Clipped tokens." in text
    assert text.count("KL to the policy that drew") == 1
    assert "Gradient norm" in text


def test_the_page_loads_plotly_from_beside_it_and_holds_text_as_text(tmp_path: Path) -> None:
    folder = small_runs(tmp_path)
    renamed = (folder / "grpo-seed2").rename(folder / "<img src=x onerror=alert(1)>")
    runs = [read_logged(one) for one in find_runs([folder])]
    text = dashboard_html(
        ATTACK, runs, folder=tmp_path, axis="step", points=9, samples=4, provenance={"command": ATTACK}
    )
    elements = Elements(text)
    assert "img" not in elements.tags
    loaded = [value for one in elements.attributes for name, value in one.items() if name in ("src", "href")]
    assert sorted(set(loaded)) == ["plotly.min.js", "sweep/oar_g-seed1/inspector/step_000002.html"]
    assert "These runs do not differ in the method alone: gating.tau." in text
    # Plotly reads tags in names: there it has to be text twice.
    assert renamed.name not in text
    assert '"name":"&lt;img src=x' in text.replace("\\u0026", "&")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_plotly_draws_the_page_without_a_network(tmp_path: Path) -> None:
    runs = [read_logged(one) for one in find_runs([small_runs(tmp_path)])]
    text = dashboard_html(ATTACK, runs, folder=tmp_path, axis="step", points=9, samples=4, provenance={})
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    (tmp_path / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    wrong: list[str] = []
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET).new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        expect(page.locator(".js-plotly-plot")).to_have_count(text.count("Plotly.newPlot"))
        expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible()
        assert wrong == [page.url, (tmp_path / "plotly.min.js").as_uri()]
        assert page.locator("img").count() == 0


def test_the_entry_point_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_runs(tmp_path / "runs")
    cfg = validated(
        composed("to=page", f"runs=[{tmp_path / 'runs'}]", f"output_dir={tmp_path / 'out'}", name="dashboard"),
        DashboardConfig,
    )
    as_page(cfg)
    assert "4 runs" in capsys.readouterr().out
    begun = next((tmp_path / "runs").rglob("metrics.jsonl"))
    begun.write_text("")  # as of a run that is taken up again from its start: the others are shown
    as_page(cfg)
    told = capsys.readouterr().out
    assert f"nothing is logged yet: {begun.parent}" in told
    assert "3 runs" in told
    assert "OAR methods" in (tmp_path / "out" / "dashboard.html").read_text()
    assert (tmp_path / "out" / "plotly.min.js").stat().st_size > 1_000_000
    for wrong, says in (
        ("to=paper", "to must be"),
        ("axis=seconds", "axis must be"),
        ("points=1", "points must be 2 or more"),
        ("samples=-1", "samples must be 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            validated(composed(wrong, name="dashboard"), DashboardConfig)
