"""Table 1 from its committed cells and scores.parquet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.table1.page import Cell, write_table1
from oar.analysis.reports.methods import BASE
from oar.config.saved import saved_config


def judge_table1(folder: Path, claims: Path, provenance: Mapping[str, Any]) -> None:
    """All of its files, as `experiments.table1.page.write_table1` writes them."""
    cells = [
        _cell(folder / "cells" / f"{one['method']}-seed{one['seed']}", one["method"], one["seed"], one["seconds"])
        for one in provenance["cells"]
    ]
    made = {key: value for key, value in provenance.items() if key != "cells"}
    write_table1(cells, folder, reference=claims, provenance=made)


def _cell(folder: Path, method: str, seed: int, seconds: float) -> Cell:
    trained = method != BASE
    return Cell(
        profile=saved_config(folder / "config.yaml").profile,
        method=method,
        seed=seed,
        evaluation=folder / "evaluation.csv",
        metrics=folder / "metrics.jsonl" if trained else None,
        timings=folder / "timings.jsonl" if trained else None,
        seconds=seconds,
    )
