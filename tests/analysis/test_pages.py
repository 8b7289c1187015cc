"""The page kit: what a template is given, what people wrote, and one drawing of values with their intervals."""

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from oar.analysis.reports.figures import dots, lines
from oar.analysis.reports.methods import looks_of, numbered
from oar.analysis.reports.page import PAGE, UNWRITTEN, frame_table, rendered, write_page
from oar.common.errors import DataError

SAID = {
    "title": "A page",
    "question": "Why?\n",
    "paper": "Nothing.",
    "ran": "Twice.",
    "measured": "5 < 6",
    "pictures": {},
}
MADE = {"command": "python -m x", "git_commit": None, "versions": {"torch": "2"}, "seconds": 3}


def test_what_people_wrote_stays_and_the_rest_is_written_anew(tmp_path: Path) -> None:
    path = write_page(tmp_path / "new" / "a.md", PAGE, MADE, **SAID)
    text = path.read_text()
    assert text.startswith("# A page\n\n**Question.** Why?\n\n**What the paper says.** Nothing.\n\n")
    assert "\n\n5 < 6\n\n## What follows\n" in text
    assert "```\npython -m x\n```" in text
    assert "| versions | torch 2 |" in text
    assert "seconds" not in text
    assert "\n\n\n" not in text
    path.write_text(text.replace(UNWRITTEN, "It is **so**."))
    again = write_page(path, PAGE, MADE | {"analysis": {"command": "y"}}, **SAID | {"measured": "7"}).read_text()
    assert "It is **so**." in again
    assert "5 < 6" not in again
    assert again.endswith("| analysis | command y |\n")
    assert json.loads((path.parent / "provenance.json").read_text())["seconds"] == 3


def test_a_template_fills_blocks_and_what_it_lacks_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "page.md.j2"
    base = '{% extends "oar/analysis/reports/page.md.j2" %}\n'
    template.write_text(base + '{% block measured %}\n{{ table(["a"], [[1], [x]]) }}\n{% endblock %}\n')
    text = write_page(tmp_path / "a.md", template, MADE, x="<b>", **SAID).read_text()
    assert "| a |\n| --- |\n| 1 |\n| <b> |\n\n" in text
    for broken, said in (("{{ y }}", "'y' is undefined"), ("{% if %}", "cannot be filled in"), (base[:-9], "cannot")):
        template.write_text(broken)
        with pytest.raises(DataError, match=said):
            rendered(template)
    html = tmp_path / "page.html.j2"
    html.write_text("{{ x }}")
    assert rendered(html, x="<b>") == "&lt;b&gt;"


def test_a_frame_as_a_table() -> None:
    frame = pd.DataFrame(
        {"name": ["a", "b"], "count": pd.array([1, None], dtype="Int64"), "share": [0.5, float("nan")]}
    )
    assert frame_table(frame).splitlines()[2:] == ["| a | 1 | 0.5 |", "| b |  |  |"]


def test_series_of_one_line_stand_below_each_other() -> None:
    rows = pd.DataFrame(
        [("x", "grpo", 1.0, 0.0, 2.0), ("x", "shuffled", 2.0, 1.5, 2.5), ("y", "shuffled", 3.0, 2.0, 4.0)],
        columns=["line", "series", "value", "low", "high"],
    )
    axes = Figure().subplots()
    looks = looks_of(["grpo", "shuffled"])
    dots(axes, rows, lines=["x", "y"], looks=looks, beside=1.0)
    *points, beside = axes.lines
    assert [(point.get_xdata()[0], round(point.get_ydata()[0], 3)) for point in points] == [
        (1.0, -0.175),
        (2.0, 0.175),
        (3.0, 1.175),
    ]
    grpo, shuffled = (looks[name].colour.lower() for name in ("grpo", "shuffled"))
    assert [to_hex(point.get_color()) for point in points] == [grpo, shuffled, shuffled]
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, True]  # a control is hollow
    assert beside.get_xdata() == [1.0, 1.0]
    assert axes.get_ylim() == (1.6, -0.6)


def test_a_line_is_the_mean_where_all_runs_are_in_a_band_from_lowest_to_highest() -> None:
    rows = pd.DataFrame(
        [(1, 1, 0.0), (1, 2, 2.0), (1, 3, 4.0), (2, 1, 2.0), (2, 2, 6.0)], columns=["run", "step", "value"]
    ).assign(series="oar_g", marked=False)
    axes = Figure().subplots()
    lines(axes, rows, looks=looks_of(["oar_g"]))
    mean, crosses = axes.lines
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([1, 2], [1.0, 4.0])
    (band,) = axes.collections
    # Where one run alone has gone on, the band is that run.
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} == {(1, 0), (1, 2), (2, 2), (2, 6), (3, 4)}
    assert len(crosses.get_xdata()) == 0


def test_runs_are_smoothed_before_their_band_is_drawn() -> None:
    rows = pd.DataFrame([(run, step, 3.0 * (step == 2)) for run in (1, 2) for step in (1, 2, 3)])
    axes = Figure().subplots()
    lines(axes, rows.set_axis(["run", "step", "value"], axis=1).assign(series="x"), looks=numbered(["x"]), window=3)
    assert list(axes.lines[0].get_ydata()) == [1.5, 1.0, 1.5]
