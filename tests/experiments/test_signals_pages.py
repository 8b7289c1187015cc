"""Pages of measurements of signals: from the committed table and provenance comes the committed page, byte by byte."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.fidelity.__main__ import condition_text
from experiments.fidelity.page import draw_fidelity, write_fidelity
from experiments.gradient_signal.page import write_gradient_signal
from experiments.omissions.page import write_omissions
from experiments.recall import page as recall
from experiments.signals import pictures
from oar.analysis.reports.signals import score_table, write_signals
from tests.config.test_config import CONF
from tests.experiments.measurements import config

RESULTS = CONF.parent / "results"
PNG = b"\x89PNG\r\n\x1a\n"
Write = Callable[[pd.DataFrame, dict[str, Any], Path], None]


def overrides(provenance: dict[str, Any]) -> list[str]:
    """What was typed behind the program."""
    _, _, _, *typed = provenance["command"].replace("'", "").split()
    return typed


def write_signal_page(name: str) -> Write:
    template = recall.TEMPLATE if name == "recall" else Path(pictures.__file__).with_name(f"{name}.md.j2")
    drawn = recall.PICTURES if name == "recall" else pictures.PICTURES[name]

    def write(table: pd.DataFrame, provenance: dict[str, Any], folder: Path) -> None:
        run, facts, signals = (provenance.pop(key) for key in ("run", "models", "signals"))
        write_signals(
            name,
            template,
            table,
            facts,
            folder,
            pictures=drawn,
            run=run,
            signals=signals,
            provenance=provenance,
        )

    return write


def write_fidelity_page(table: pd.DataFrame, provenance: dict[str, Any], folder: Path) -> None:
    cfg = config("fidelity", *overrides(provenance))
    write_fidelity(
        table,
        provenance.pop("conditions"),
        folder,
        run=provenance.pop("run"),
        conditions={name: condition_text(condition) for name, condition in cfg.conditions.items()},
        signals=cfg.signals,
        lead=tuple(cfg.pairs[0]),
        series=cfg.series,
        provenance=provenance,
    )


def write_gradient_page(table: pd.DataFrame, provenance: dict[str, Any], folder: Path) -> None:
    write_gradient_signal(provenance["gradients"], table, folder, provenance)


def write_omissions_page(table: pd.DataFrame, provenance: dict[str, Any], folder: Path) -> None:
    write_omissions(table, folder, provenance)


WRITERS: dict[str, Write] = {
    **{name: write_signal_page(name) for name in ("recall", *pictures.PANELS)},
    "fidelity": write_fidelity_page,
    "omissions": write_omissions_page,
    "gradient_signal": write_gradient_page,
    "sheet_gradients": write_gradient_page,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_committed_page_is_what_its_table_gives(name: str, tmp_path: Path) -> None:
    committed = RESULTS / name
    shutil.copy(committed / f"{name}.md", tmp_path)  # what people wrote stays
    provenance = json.loads((committed / "provenance.json").read_text())
    WRITERS[name](pd.read_csv(committed / f"{name}.csv"), provenance, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in committed.iterdir()}
    for file in tmp_path.iterdir():
        if file.suffix == ".png":
            assert file.read_bytes().startswith(PNG)
        else:
            assert file.read_text() == (committed / file.name).read_text()


def test_a_table_shows_signals_or_their_differences() -> None:
    rows = pd.DataFrame(
        [
            ("all", "a", "m", 0.5, 0.25, 0.75),
            ("all", "a - b", "m", 0.5, 0.25, 0.75),
            ("all", "b", "other", 1.0, 1.0, 1.0),
        ],
        columns=["split", "signal", "metric", "value", "low", "high"],
    )
    columns = {("all", "m"): "M", ("wrong", "m"): "M, wrong"}
    assert score_table(rows, "Some", columns).splitlines() == [
        "### Some",
        "",
        "| signal | M | M, wrong |",
        "| --- | --- | --- |",
        "| `a` | 0.50 [0.25, 0.75] |  |",
    ]
    assert score_table(rows, "", columns, form=".1g", sign="+").splitlines()[4:] == [
        "| `a - b` | +0.5 [+0.2, +0.8] |  |"
    ]
    assert score_table(rows, "Nobody has it", {("wrong", "m"): "M"}) == ""


def test_a_line_of_one_signal_or_of_none_that_was_measured_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    table = pd.read_csv(RESULTS / "fidelity" / "fidelity.csv")
    series = {"mine": {"4": "window_4"}, "other": {"1": "not_measured", "2": "nor_this"}}
    draw_fidelity(table, tmp_path / "fidelity.png", reference="oar_p", lead=("oar_gn", "oar_g"), series=series)
    assert (tmp_path / "fidelity.png").read_bytes().startswith(PNG)


def test_fidelity_is_to_what_the_signals_were_held_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pretrained model that is the knock-out, and OAR-P's mask is one of the signals."""
    figures: list[Figure] = []
    monkeypatch.setattr("oar.analysis.reports.figures.save_png", lambda figure, _: figures.append(figure))
    folder = RESULTS / "smollm2" / "fidelity"
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance["command"] = "python -m experiments.fidelity compared=smollm2"  # since then it has no random token
    write_fidelity_page(pd.read_csv(folder / "fidelity.csv"), provenance, tmp_path)
    assert "Spearman with exact OAR-P knock-out under" in (tmp_path / "fidelity.md").read_text()
    above, below = figures[0].get_axes()
    assert above.get_ylabel() == "Spearman with exact OAR-P knock-out"
    assert below.get_xlabel().startswith("Spearman with exact OAR-P knock-out, ")
