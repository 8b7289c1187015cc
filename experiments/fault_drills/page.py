"""The table of the fault drills: one line for each, what is promised beside what happened."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from experiments.fault_drills.perform import DrillResult
from oar.analysis.reports.page import table_lines
from oar.common.files import atomic_path, write_text_atomic

TEXT = """# Fault drills

**What was done.** Real runs with the real engine, damaged on purpose at a chosen moment (a process killed or stopped, a disk
that is full, a bit flipped, a port taken, answers damaged on their way), then resumed and compared with a run that nothing
happened to. `{command}`: {settings}; {cpu}, {cores} cores. Seconds depend on the machine, those of a hung engine on
`rollout.request_timeout_s`, which bounds it.

**Promised in all of them.** No process is left; no checkpoint that was whole is lost; a run that ends goes on with
`resume=auto` from its last whole checkpoint; no completion that failed is in a metric; in the end `metrics.jsonl` and
`evaluation.csv` are, byte for byte, those of the undisturbed run. With `rollout.restart=true` a run that loses its engine
does not end at all.

**Outcome.** {outcome}

{table}

`noticed` is the time from the damage (from the first file or answer it touches) to the run's sentence about it, `ended` to
the end of its last process. Steps lost are those that were done again after a resume.

## What the runs said

{said}
"""


def write_drills(results: Sequence[DrillResult], folder: Path, provenance: Mapping[str, object], settings: str) -> None:
    """fault_drills.csv, fault_drills.md and provenance.json in `folder`, each atomically."""
    with atomic_path(folder / "fault_drills.csv") as path:
        pd.DataFrame([asdict(result) for result in results]).to_csv(path, index=False)
    said = [f"- `{result.drill}` (promised: {result.promise}): {result.happened}" for result in results]
    texts = {"settings": settings, "outcome": outcome(results), "table": table(results), "said": "\n".join(said)}
    write_text_atomic(folder / "fault_drills.md", TEXT.format(**{**provenance, **texts}))
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


def outcome(results: Sequence[DrillResult]) -> str:
    """One sentence for all, and one for each promise that was broken."""
    broken = [f"**{result.drill}: {result.faults}.**" for result in results if result.faults]
    counted = numbers(results)
    first = (
        f"{len(results)} drills: every promise was kept in {len(results) - len(broken)}; {counted['orphans']} processes left,"
        f" {counted['lost_checkpoints']} checkpoints lost, noticed within {counted['max_seconds_to_notice']:g} s at most."
    )
    return " ".join([first, *broken])


def table(results: Sequence[DrillResult]) -> str:
    """The measured columns in Markdown."""
    head = ["drill", "exit code", "noticed, s", "ended, s", "orphans", "restarts", "steps done", "steps lost"]
    rows = []
    for one in results:
        ended = "goes on" if one.seconds_to_end is None else f"{one.seconds_to_end:.1f}"
        cells = [one.drill, one.exit_code, f"{one.seconds_to_notice:.1f}", ended, one.orphans, one.restarts]
        cells += [one.steps_done, one.steps_lost, one.lost_checkpoints, "yes" if one.same_metrics else "no"]
        rows.append([str(cell) for cell in cells])
    return table_lines([*head, "checkpoints lost", "same metrics"], rows)
