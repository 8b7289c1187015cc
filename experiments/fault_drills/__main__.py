"""Runs that are damaged on purpose: `python -m experiments.fault_drills short=true`. The last line is one JSON object.

Exit code 1 where a promise was broken.
"""

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.fault_drills.catalogue import DRILLS, SHORT, Drill
from experiments.fault_drills.page import numbers, write_drills
from experiments.fault_drills.perform import DrillResult, Stage, perform
from oar.command_line.entry import entry
from oar.common.errors import OarError
from oar.common.provenance import ROOT, collect_provenance, git_state
from oar.config import validated
from oar.config.checks import one_of, require
from oar.config.composed import composed_run
from oar.launch.start_model import model_folder
from oar.launch.supervisor import one_engine
from oar.rollout.access import TOKEN_VARIABLE, new_token


@dataclass
class FaultDrillsConfig:
    """See conf/fault_drills.yaml."""

    short: bool
    only: list[str] | None
    url: str | None
    timeout_s: float
    output_dir: str
    overrides: list[str]
    long_overrides: list[str]

    def __post_init__(self) -> None:
        for name in self.only or ():
            one_of("only", name, tuple(drill.name for drill in DRILLS))
        require(self.timeout_s > 0, "timeout_s", "above 0", self.timeout_s)

    def drills(self) -> list[Drill]:
        """Those that are asked for, in the order of the catalogue."""
        names = self.only if self.only is not None else SHORT if self.short else [drill.name for drill in DRILLS]
        return [drill for drill in DRILLS if drill.name in names]


@entry
def main(config: DictConfig) -> None:
    """Start one engine, do the drills one after the other, write the table."""
    cfg = validated(config, FaultDrillsConfig)
    started, git = datetime.now(UTC), git_state(ROOT)
    folder = Path(HydraConfig.get().runtime.output_dir)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    results = do_all(cfg, folder)
    settings = f"runs of {', '.join(cfg.overrides)}; the long one with {', '.join(cfg.long_overrides)}"
    write_drills(results, folder, collect_provenance(asdict(cfg), started=started, git=git), settings)
    print((folder / "fault_drills.md").read_text())
    print(f"written to {folder}: fault_drills.csv, fault_drills.md, provenance.json")
    counted = numbers(results)
    print(json.dumps(counted, allow_nan=False))
    if counted["broken_promises"]:
        sys.exit(1)


def do_all(cfg: FaultDrillsConfig, folder: Path) -> list[DrillResult]:
    """One result for each drill. The run of a drill that kept its promises is removed."""
    settings = composed_run(cfg.overrides)
    results = []
    with ExitStack() as running:
        # One token for the shared engine and for those that runs start themselves: a drill asks them what they are doing.
        os.environ.setdefault(TOKEN_VARIABLE, new_token())
        url = cfg.url
        if url is None:
            print("starting the engine that drills share ...", flush=True)
            url, _ = one_engine(settings, model_folder(settings.model, print), folder, running)
        stage = Stage(folder / "runs", url, tuple(cfg.overrides), tuple(cfg.long_overrides), cfg.timeout_s)
        for drill in cfg.drills():
            began = time.monotonic()
            try:
                result = perform(drill, stage)
            except OarError as error:
                raise OarError(f"The drill {drill.name} could not be done: {error}") from error
            print(
                f"{drill.name}: {result.faults or 'every promise kept'} ({time.monotonic() - began:.0f} s)", flush=True
            )
            if not result.faults:
                shutil.rmtree(stage.folder / drill.name)
            results.append(result)
        if not any(result.faults for result in results):
            shutil.rmtree(stage.folder)
    return results


if __name__ == "__main__":
    main()
