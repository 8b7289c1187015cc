"""The files of oracle recall, from a table made here."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.recall.page import write_recall
from oar.analysis.signals.recall import Truth, recall_table

PNG = b"\x89PNG\r\n\x1a\n"
SIGNALS = {
    "uniform": ["method=grpo"],
    "oar_p": ["method=oar_p"],
    "surprisal": ["method=grpo", "method.times_surprisal=true"],
}
RUN = {
    "split": "curve",
    "problems": 3,
    "samples": 2,
    "seed": 1,
    "probe": "as_mean",
    "reference": "oar_p",
    "models": "`m`: it",
}


def measured(model: str, seed: int, pairs: list[tuple[str, str]]) -> tuple[pd.DataFrame, dict[str, float]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 12, size=6)
    causal = [rng.random(length) < 0.5 for length in lengths]
    for marks in causal:
        marks[:2] = True, False
    error = [np.arange(length) == 3 for length in lengths]
    correct = np.array([True, False] * 3)
    truth = Truth(
        ["a", "a", "b", "b", "c", "c"], correct, causal, [e & ~c for e, c in zip(error, correct, strict=True)]
    )
    signals = {
        "uniform": [np.ones(length) for length in lengths],
        "oar_p": [marks + rng.random(len(marks)) for marks in causal],
        "surprisal": [rng.random(length) for length in lengths],
    }
    table = recall_table(signals, truth, reference="oar_p", pairs=pairs, k=[2], seed=0)
    table.insert(0, "model", model)
    return table, {"drawn": 8, **truth.facts()}


def write(folder: Path, pairs: list[tuple[str, str]]) -> str:
    (one, first), (other, second) = measured("base", 0, pairs), measured("trained", 1, pairs)
    write_recall(
        pd.concat([one, other], ignore_index=True),
        {"base": first, "trained": second},
        folder,
        run=RUN,
        signals=SIGNALS,
        provenance={"command": "python -m experiments.recall", "git_commit": None},
    )
    return (folder / "recall.md").read_text()


def test_the_five_files(tmp_path: Path) -> None:
    write(tmp_path, [("oar_p", "surprisal")])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "calibration.png", "provenance.json", "recall.csv", "recall.md", "recall.png",
    ]  # fmt: skip
    table = pd.read_csv(tmp_path / "recall.csv")
    assert list(table.columns) == ["model", "split", "signal", "metric", "value", "low", "high", "n"]
    assert set(table["signal"]) == {*SIGNALS, "oar_p - surprisal"}
    for name in ("recall.png", "calibration.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["signals"] == SIGNALS
    assert record["models"]["base"]["completions"] == 6
    assert record["run"]["split"] == "curve"


def test_the_text_shows_the_tables_numbers(tmp_path: Path) -> None:
    text = write(tmp_path, [("oar_p", "surprisal")])
    table = pd.read_csv(tmp_path / "recall.csv")
    row = table.query("model == 'trained' and split == 'all' and signal == 'oar_p' and metric == 'causal_auc'").iloc[0]
    trained = text.split("## Model `trained`")[1]
    assert f"| `oar_p` | {row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}] |" in trained
    # The constant signal: chance, and no calibration.
    assert "| `uniform` | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] |" in trained
    (uniform,) = [line for line in trained.split("### First errors")[0].splitlines() if line.startswith("| `uniform`")]
    assert uniform.endswith("|  |")
    assert " nan" not in text.lower()
    (difference,) = [line for line in trained.splitlines() if line.startswith("| `oar_p - surprisal`")]
    assert difference.count("[") == 4
    assert "+" in difference
    assert "| `surprisal` | `method=grpo method.times_surprisal=true` |" in text
    assert "**Question.**" in text
    assert "python -m experiments.recall" in text


def test_without_pairs_there_are_no_differences(tmp_path: Path) -> None:
    text = write(tmp_path, [])
    assert "### Differences" not in text
    assert "### Agreement" in text
