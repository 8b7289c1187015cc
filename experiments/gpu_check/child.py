"""The process of one part: `python -m experiments.gpu_check.child MODULE:FUNCTION FILE`; what it finds goes to the file."""

import importlib
import sys
from pathlib import Path

from experiments.gpu_check.findings import Findings, NotRunError


def main(target: str, path: Path) -> None:
    """Run the part. An error in it is a finding; a signal or a time limit leaves the file without its last line."""
    findings, not_run = Findings(path), None
    with findings.case("the part"):
        module, function = target.split(":")
        try:
            getattr(importlib.import_module(module), function)(findings)
        except NotRunError as reason:
            not_run = str(reason)
    findings.end(not_run)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
