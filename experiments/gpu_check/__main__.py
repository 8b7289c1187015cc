"""What a first GPU can tell, a line per part, then one JSON object: `python -m experiments.gpu_check --only PART,PART`.

Exit code 0: every part passed, or says why it was not run. 1: something is to be mended. 2: the check itself cannot run so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from experiments.gpu_check import page
from experiments.gpu_check.device import FULL
from experiments.gpu_check.findings import ROOT
from experiments.gpu_check.registry import PARTS
from experiments.gpu_check.runner import PASSED, Part, run_parts
from oar.command_line.exit_codes import explain_errors, terminable
from oar.common.errors import ConfigError
from oar.common.provenance import code_hash, collect_provenance, git_state, gpu_name
from oar.config.checks import one_of, require

RESULTS = ROOT / "results" / "gpu_check"
OUTPUTS = ROOT / "outputs" / "gpu_check"
LOGS = "logs"
PATIENCE_S = 1200.0  # of a part without a GPU: only what hangs is stopped


def main(arguments: Sequence[str]) -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu_check", description="What a first GPU can tell.")
    parser.add_argument("--out", metavar="DIR", help="default: results/gpu_check; without a GPU outputs/gpu_check")
    parser.add_argument("--only", metavar="PART,PART", help="these parts; the other lines of DIR stay as they are")
    parser.add_argument("--list", action="store_true", help="print which parts there are")
    asked = parser.parse_args(arguments)
    if asked.list:
        for part in PARTS:
            print(f"{part.name:10} {part.limit_s:4.0f} s  {part.what}")
        return 0
    parts, folder = chosen(asked.only), out_folder(asked.out, FULL)
    started, git = datetime.now(UTC), git_state(ROOT)
    where = gpu_name() or "the GPU" if FULL else "a CPU, at a hundredth of the size"
    print(f"{len(parts)} parts on {where}, results in {folder}", flush=True)
    lines = []
    # What a part prints, and one that was killed, can be read in the logs.
    logs = OUTPUTS / LOGS if FULL else folder / LOGS
    for line in run_parts(parts, logs, lambda part: part.limit_s if FULL else PATIENCE_S):
        lines.append(line)
        message = "" if line.verdict == PASSED else f"  {line.message}"
        print(f"{line.name:10} {line.verdict:8} {line.seconds:6.1f} s{message}", flush=True)
        page.write(folder, lines, origin(started, git), FULL)
    in_order = all(line.in_order for line in lines)
    verdicts = {line.name: line.verdict for line in lines}
    print(json.dumps({"in_order": in_order, "full": FULL, "out": str(folder), "parts": verdicts}))
    return 0 if in_order else 1


def chosen(only: str | None) -> list[Part]:
    """The parts named in a list with commas, all without one. Raises ConfigError for a name that is none."""
    if only is None:
        return list(PARTS)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        one_of("--only", name, tuple(part.name for part in PARTS))
    return [part for part in PARTS if part.name in names]


def out_folder(out: str | None, full: bool) -> Path:
    """Where the results go. Raises ConfigError for results/gpu_check without a GPU, and for a GPU that torch does not find."""
    if not full and (seen := gpu_name()):
        raise ConfigError(
            f"nvidia-smi sees a GPU ({seen}), but torch {torch.__version__} finds none: install a torch built for it, or "
            "look at CUDA_VISIBLE_DEVICES."
        )
    folder = Path(out).resolve() if out else RESULTS if full else OUTPUTS
    elsewhere = "not in results/gpu_check without a GPU: what is measured on a CPU does not belong there"
    require(full or not folder.is_relative_to(RESULTS), "--out", elsewhere, str(folder))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK)
    require(writable, "--out", "a folder that can be written", str(folder))
    return folder


def origin(started: datetime, git: dict[str, object]) -> dict[str, Any]:
    """Where the numbers come from."""
    found, driver = collect_provenance({"check": "gpu"}, started=started, git=git), None
    if found["gpu"] and shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.partition("\n")[0] or None
    return {**found, "code": code_hash(*Path(__file__).parent.rglob("*.py"))[:12], "driver": driver}


if __name__ == "__main__":
    with explain_errors(), terminable():
        sys.exit(main(sys.argv[1:]))
