"""The pages of the experiments on signals, from made tables: what they show is what the table holds."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.signals.error_location import AT, ERRORS, LOCATED, MASS_AT
from experiments.signals.pages import ERROR_LOCATION, MASK_ARTEFACTS, PROXY_MISMATCH
from oar.analysis.reports.page import CLOSED, OPENED, UNWRITTEN
from oar.analysis.reports.signals import Section, SignalPage, score_table, write_signals

PAGES = (MASK_ARTEFACTS, PROXY_MISMATCH, ERROR_LOCATION)
SIGNALS = {"uniform": ["method=grpo"], "oar_p": ["method=oar_p"]}
RUN = {"split": "curve", "problems": 3, "samples": 2, "seed": 1, "probe": "as_mean", "models": "`base`: it"}
RUN |= {"gating": "bilevel", "tau": 0.4, "beta": 2.0}
FACTS = {
    "drawn": 6,
    "completions": 5,
    "problems": 3,
    "correct": 2,
    "errors_located": 1,
    "reasoning_tokens": 40.0,
    "causal_share": 0.4,
}


def made(page: SignalPage) -> pd.DataFrame:
    """A value for everything that the page shows, of two models."""
    rng = np.random.default_rng(0)
    shown = [(*key, bool(section.sign)) for section in page.sections for key in section.columns]
    shown += [(*key, False) for key in page.panels]
    rows = {
        (model, split, signal, metric): rng.random()
        for model in ("base", "trained")
        for split, metric, difference in shown
        for signal in (("oar_p - uniform",) if difference else ("uniform", "oar_p"))
    }
    for model in ("base", "trained"):
        for tenth in range(10):
            rows[model, LOCATED, ERRORS, f"{AT}_{tenth / 10:.1f}"] = 0.1
            rows[model, LOCATED, "oar_p", f"{MASS_AT}_{tenth / 10:.1f}"] = tenth / 45
    return pd.DataFrame(
        [(*key, value, value - 0.1, value + 0.1, 5) for key, value in rows.items()],
        columns=["model", "split", "signal", "metric", "value", "low", "high", "n"],
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_all_its_parts(page: SignalPage, tmp_path: Path) -> None:
    table = made(page)
    provenance = {"command": "python -m experiments.signals experiment=it", "git_commit": None}
    facts = {"base": FACTS, "trained": FACTS}
    write_signals(page, table, facts, tmp_path, run=RUN, signals=SIGNALS, provenance=provenance)
    pictures = {f"{page.name}.png", *page.more}
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{page.name}.csv",
        f"{page.name}.md",
        "provenance.json",
        *pictures,
    }
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / f"{page.name}.md").read_text()
    parts = ["**Question.**", "**What the paper says.**", "**What was run.**", "## What follows", "## How to repeat it"]
    assert all(part in text for part in parts)
    assert f"{OPENED}\n{UNWRITTEN}\n{CLOSED}" in text
    assert "experiments.signals experiment=it" in text.split("## How to repeat it")[1]
    assert " nan" not in text.lower()
    assert "{" not in text  # nothing was left to fill in
    for section in page.sections:
        assert text.count(f"### {section.heading}\n") == 2
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["signals"] == SIGNALS
    assert record["models"]["base"]["completions"] == 5
    assert len(pd.read_csv(tmp_path / f"{page.name}.csv")) == len(table)


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
    assert score_table(rows, Section("", columns)).splitlines() == [
        "| signal | M | M, wrong |",
        "| --- | --- | --- |",
        "| `a` | 0.50 [0.25, 0.75] |  |",
    ]
    assert score_table(rows, Section("", columns, form=".1g", sign="+")).splitlines()[2:] == [
        "| `a - b` | +0.5 [+0.2, +0.8] |  |"
    ]
    assert score_table(rows, Section("", {("wrong", "m"): "M"})) == ""
