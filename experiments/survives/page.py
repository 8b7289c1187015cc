"""The page of findings that were measured on two models, and its picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from experiments.survives.costs import costs
from experiments.survives.judged import FEW, HERE, THERE, VERDICTS
from oar.analysis.reports.figures import QUIET, dots, legend_below, picture, series_of
from oar.analysis.reports.methods import numbered
from oar.analysis.reports.page import write_csv, write_page

TEMPLATE = Path(__file__).with_name("page.md.j2")
BENCH = Path("bench_importance/bench_importance.csv")


def write_survives(
    name: str,
    table: pd.DataFrame,
    folder: Path,
    *,
    model: str,
    embedded: Path,
    programs: Mapping[str, Sequence[str]],
    provenance: Mapping[str, object],
) -> Path:
    """Write the page of `name`, its table and picture in `folder`; returns the page. `table`: see `judged`."""
    write_csv(table, folder / f"{name}.csv")
    draw_survives(table, folder / f"{name}.png")
    measured = [embedded / BENCH, folder / BENCH]
    steps = costs(*map(pd.read_csv, measured)) if all(file.is_file() for file in measured) else None
    return write_page(
        folder / f"{name}.md",
        TEMPLATE,
        provenance,
        name=name,
        here=table[table["model"] == HERE].to_dict("records"),
        there=table[table["model"] == THERE].to_dict("records"),
        verdicts=VERDICTS,
        few=FEW,
        called=model,
        embedded=embedded,
        programs=programs,
        costs=None if steps is None else steps.to_dict("records"),
        measured_there=[one for one in programs if (folder / one / "provenance.json").is_file()],
    )


def draw_survives(table: pd.DataFrame, path: Path) -> None:
    """A line per finding, a mark per model with its interval, a short bar where the bound of the line is."""
    shown = table.assign(line=table["finding"], series=table["model"])
    lines = list(dict.fromkeys(shown["line"]))
    looks = numbered([HERE, THERE])
    with picture(path, 1.2 + 0.36 * len(lines)) as figure:
        axes = figure.subplots()
        dots(axes, shown, lines=lines, looks=looks)
        bounds = shown.drop_duplicates("line")
        for at, bound in enumerate(bounds["bound"]):
            axes.vlines(bound, at - 0.4, at + 0.4, color=QUIET, linewidth=1.5)
        axes.set_xlabel("value, in the unit of its line; grey: the bound that the finding is about")
        legend_below(figure, series_of([axes], looks))
