"""Every picture of results/ as it is drawn today: looks of the one table, letters that can be read, no empty panel."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from experiments.gradient_signal import page as gradient_signal
from experiments.reanalyse import pictures_of, table_of
from experiments.stability.figures import draw_frontier, draw_levels, draw_trajectories
from experiments.stability.page import read_levels
from experiments.study.ceilings import (
    STEPS,
    arms_in_order,
    draw_ceilings,
    fastest,
    one_row_an_arm,
    read_costs,
    summarised,
)
from experiments.study.credit_dynamics import draw_credit, draw_profile
from experiments.study.mistakes import draw_mistakes
from experiments.study.page import CURVES, draw_differences
from experiments.table1.page import draw_table1, read_cells, read_scores
from oar.analysis.reports.figures import SHOWN, curve_table, draw_curves
from oar.analysis.reports.methods import KINDS, LOOKS, METHOD, OTHER_COLOURS, label, look, numbered
from oar.analysis.reports.signals import Pictures

RESULTS = Path(__file__).parents[2] / "results"
SMALLEST = 9  # pixels of a letter at the width of a page on GitHub


def drawn_by(folder: Path) -> None:
    """Draw everything that stands in a folder of results, without a file."""
    nowhere = Path("nowhere.png")
    made = json.loads((folder / "provenance.json").read_text())
    if (folder / "table1.csv").is_file():
        cells = [(one["method"], folder / "cells" / f"{one['method']}-seed{one['seed']}") for one in made["cells"]]
        runs = read_cells(cells, folder / "scores.parquet")
        draw_table1(read_scores(runs), pd.read_csv(folder / "differences.csv"), nowhere)
        trained = [(run.arm, run.metrics) for run in runs if run.arm != "base"]
        draw_curves(curve_table(trained), list(dict.fromkeys(arm for arm, _ in trained)), nowhere)
    elif (folder / "levels.csv").is_file():
        levels = read_levels(folder, made["sweep"])
        (draw_frontier if len(levels.keys) == 2 else draw_levels)(levels, nowhere)
        metrics, runs = pd.read_parquet(folder / "metrics.parquet"), pd.read_csv(folder / "runs.csv")
        draw_trajectories(metrics, runs, levels, nowhere)
    elif (folder / "scores.csv").is_file():
        draw_differences(pd.read_csv(folder / "differences.csv"), nowhere, reference="grpo")
        if (folder / "mistakes.csv").is_file():
            draw_mistakes(pd.read_csv(folder / "mistakes.csv"), nowhere)
        if (folder / "credit.csv").is_file():
            draw_credit(pd.read_csv(folder / "credit.csv"), nowhere)
            draw_profile(pd.read_csv(folder / "credit.csv"), nowhere)
    elif (folder / STEPS).is_file():
        about = made["study"]
        costs, curves = read_costs(folder), pd.read_parquet(folder / CURVES)
        of_all = (costs, about["kinds"], about["reference"])
        at_best = summarised(one_row_an_arm(costs), *of_all[1:])
        draw_ceilings(at_best, fastest(*of_all), curves, costs, arms_in_order(about), nowhere)
    elif "gradients" in made:
        about = made["gradients"]
        for draw in gradient_signal.pictures(reference=about["reference"], judged=about["judged"]).values():
            draw(pd.read_csv(folder / f"{about['name']}.csv"), nowhere)
    else:
        found: Pictures | None = pictures_of(folder)
        assert found is not None
        for draw in found.values():
            draw(pd.read_csv(table_of(folder, found)), nowhere)


WITH_PICTURES = sorted({str(file.parent.relative_to(RESULTS)) for file in RESULTS.rglob("*.png")})


def figures_of(folder: Path) -> list[Figure]:
    found: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oar.analysis.reports.figures.save_png", lambda figure, _: found.append(figure))
        drawn_by(folder)
    return found


@pytest.fixture(scope="module", params=WITH_PICTURES)
def figures(request: pytest.FixtureRequest) -> list[Figure]:
    """The figures of one folder."""
    found = figures_of(RESULTS / request.param)
    assert found
    return found


def test_letters_can_be_read_at_the_width_of_a_page(figures: list[Figure]) -> None:
    for figure in figures:
        shown = SHOWN / (figure.get_figwidth() * 72)
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        assert texts
        for text in texts:
            assert text.get_fontsize() * shown >= SMALLEST, text.get_text()


def test_a_method_has_its_colour_and_marker(figures: list[Figure]) -> None:
    by_label = {look(name).label: look(name) for name in LOOKS}
    of_methods = {one.colour.lower() for one in LOOKS.values()}
    for axes in (axes for figure in figures for axes in figure.get_axes()):
        for line in axes.get_lines():
            label, marker = str(line.get_label()), str(line.get_marker())
            if label in by_label:
                one = by_label[label]
                assert (to_hex(line.get_color()), marker) == (one.colour.lower(), one.marker), label
                assert (line.get_markerfacecolor() == "white") == (one.kind != METHOD), label
            elif label.endswith(("shuffled (control)", "position (control)")):  # a method's own numbers on other tokens
                assert line.get_markerfacecolor() == "white", label
            elif not label.startswith(("_", "OAR-P")):  # OAR-P's variants at a value have their family's look
                assert to_hex(line.get_color()) not in of_methods, f"{label} has the colour of a method"


def test_no_panel_is_empty_and_a_legend_names_a_thing_once(figures: list[Figure]) -> None:
    for figure in figures:
        for axes in figure.get_axes():
            assert axes.has_data() or axes.texts, axes.get_title()
        for legend in figure.legends:
            names = [text.get_text() for text in legend.get_texts()]
            assert len(names) == len(set(names)) > 0


def test_several_seeds_are_a_line_in_a_band() -> None:
    for axes in figures_of(RESULTS / "table1")[-1].get_axes():
        bands = [one for one in axes.collections if isinstance(one, FillBetweenPolyCollection)]
        assert len(bands) == len(axes.get_lines()), axes.get_title()


def test_where_an_arm_stands_is_seen_from_zero() -> None:
    """Also where no arm is near it: a panel that begins beside the ceiling makes small differences large."""
    for axes in (axes for figure in figures_of(RESULTS / "ceilings") for axes in figure.get_axes()):
        assert axes.get_xlim()[0] <= 0 < 1 <= axes.get_xlim()[1], axes.get_title()


def test_an_arm_that_does_not_get_there_is_told_from_one_that_was_not_run() -> None:
    about = json.loads((RESULTS / "ceilings/provenance.json").read_text())["study"]
    costs = pd.read_csv(RESULTS / "ceilings/steps.csv")
    summary = summarised(one_row_an_arm(costs), about["kinds"], about["reference"])
    shown = summary[summary["standing"].notna() | np.isinf(summary["steps"])]
    for axes in figures_of(RESULTS / "ceilings")[-1].get_axes():
        here = shown[shown["condition"] == axes.get_title(loc="left")]
        enough = min(3, here["seeds"].max())  # an arm of fewer seeds is in the tables alone
        found = (here["seeds"] >= enough).sum()
        marks = sum(len(line.get_xdata()) for line in axes.get_lines() if line.get_marker() not in ("", "None"))
        assert marks == found < len(about["arms"])


def test_methods_stand_above_controls_above_oracles() -> None:
    """In every panel, though no panel has all arms and the table has them as they were run."""
    kinds = json.loads((RESULTS / "ceilings/provenance.json").read_text())["study"]["kinds"]
    kind_by_label = {label(arm): KINDS.index(kind) for arm, kind in kinds.items()}
    for axes in (axes for figure in figures_of(RESULTS / "ceilings") for axes in figure.get_axes()):
        drawn = [kind_by_label[text.get_text()] for text in axes.get_yticklabels()]
        assert drawn == sorted(drawn), axes.get_title()


def test_what_is_not_in_the_table_has_a_look_of_its_own() -> None:
    pairs = [(one.colour, one.marker) for one in LOOKS.values()]
    assert len(set(pairs)) == len(pairs)
    assert len({one.label for one in LOOKS.values()}) == len(LOOKS)
    assert not {one.colour for one in LOOKS.values()} & set(OTHER_COLOURS)
    mine = look("mine")
    assert mine == look("mine") != look("another")
    assert mine.colour in OTHER_COLOURS
    assert (look("routes4").label, look("oar_p_routes").label) == ("OAR-P routes 4", "OAR-P routes")
    assert look("routes_4")[1:3] == look("oar_p_routes")[1:3]
    assert look("budget_8_window_4") == look("window4_budget8")
    assert look("oracle_mine").label == "oracle_mine (oracle)"
    many = numbered([str(level) for level in range(60)])
    assert len({(one.colour, one.marker) for one in many.values()}) == 60
