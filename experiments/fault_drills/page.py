"""The table of the fault drills: one line for each, what is promised beside what happened."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from jinja2 import StrictUndefined, Template

from experiments.fault_drills.perform import DrillResult
from oar.analysis.reports.page import write_csv
from oar.common.files import write_text_atomic

PAGE = Path(__file__).with_name("page.md.j2")


def write_drills(results: Sequence[DrillResult], folder: Path, provenance: Mapping[str, object], settings: str) -> None:
    """fault_drills.csv, fault_drills.md and provenance.json in `folder`, each atomically."""
    write_csv(pd.DataFrame([asdict(result) for result in results]), folder / "fault_drills.csv")
    template = Template(PAGE.read_text(), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    page = template.render(**provenance, **numbers(results), results=results, settings=settings)
    write_text_atomic(folder / "fault_drills.md", page)
    write_text_atomic(folder / "provenance.json", json.dumps(provenance, indent=2, allow_nan=False) + "\n")


def numbers(results: Sequence[DrillResult]) -> dict[str, float]:
    """The last line that is printed."""
    return {
        "drills": len(results),
        "orphans": sum(result.orphans for result in results),
        "lost_checkpoints": sum(result.lost_checkpoints for result in results),
        "max_seconds_to_notice": max(result.seconds_to_notice for result in results),
        "broken_promises": sum(bool(result.faults) for result in results),
    }
