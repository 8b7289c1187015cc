"""Committed results judged anew by the statistics of today, without training: intervals, verdicts, and the pages that show them.

What was measured stays as it was, and so does where it came from; `analysis` in provenance.json says what judged it last. Raw
scores of single problems are committed for Table 1 alone; of other pages the ends of the bootstrap that was drawn from them are.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from oar.errors import DataError
from oar.reanalysis.study import judge_study
from oar.reanalysis.sweep import judge_sweep
from oar.reanalysis.table1 import judge_table1

KINDS = {"table1.csv": judge_table1, "levels.csv": judge_sweep, "scores.csv": judge_study}  # by a file that only it has


def judge(folder: Path, *, claims: Path, analysis: Mapping[str, object]) -> None:
    """Write anew what follows from the measurements in `folder`.

    `claims`: the folder of the paper's claims; `analysis`: what judges, for provenance.json. Raises DataError where the folder
    holds no table whose statistics are known here.
    """
    kind = next((of for name, of in KINDS.items() if (folder / name).is_file()), None)
    if kind is None:
        raise DataError(f"{folder} must hold one of {', '.join(KINDS)}, but has none: correct folders.")
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    kind(folder, claims, provenance | {"analysis": dict(analysis)})
