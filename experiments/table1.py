"""Table 1, cell by cell: `python -m experiments.table1 seeds=3`. Finished cells are kept, so it can be interrupted."""

from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar.cli import explain_errors
from oar.config import Table1Config, validated
from oar.lanes import Job, joint_provenance, planned, run_missing
from oar.reports.table1 import BASE, Cell, write_table1

REFERENCE = Path(__file__).parents[1] / "results" / "reference"


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell to be run: a method under a seed."""

    method: str
    seed: int
    job: Job


@hydra.main(version_base=None, config_path="../conf", config_name="table1")
def main(config: DictConfig) -> None:
    """Plan the cells, run what is missing, write the table."""
    with explain_errors():
        cfg = validated(config, Table1Config)
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = plan(cfg, folder)
        jobs = [cell.job for cell in cells]
        run_missing(jobs, folder / "cells", cfg.lanes)
        provenance = joint_provenance(jobs, cfg.lanes)
        write_table1([finished(cell) for cell in cells], folder, reference=REFERENCE, provenance=provenance)
        print((folder / "table1.md").read_text())
        print(f"written to {folder}: table1.csv, claims.csv, table1.md, table1.png, curves.png, provenance.json")


def plan(cfg: Table1Config, folder: Path) -> list[Planned]:
    """Every cell, base model first, validated before any of them starts."""
    cells = []
    for seed in range(1, cfg.seeds + 1):
        for name in (BASE, *cfg.methods):
            # The table's own settings come last, so that no override of the user's can turn a cell into another one.
            overrides = [*cfg.overrides, f"profile={cfg.profile}", f"seed={seed}"]
            overrides += [f"method={'grpo' if name == BASE else name}"]
            steps = 0 if name == BASE else cfg.steps
            overrides += [] if steps is None else [f"learner.steps={steps}"]
            cells.append(Planned(name, seed, planned(folder / "cells" / f"{name}-seed{seed}", overrides)))
    return cells


def finished(cell: Planned) -> Cell:
    """A cell that has been run, as the report reads it."""
    job, trained, provenance = cell.job, cell.method != BASE, cell.job.provenance()
    assert provenance is not None
    return Cell(
        profile=job.settings.profile,
        method=cell.method,
        seed=cell.seed,
        evaluation=job.folder / "evaluation.csv",
        metrics=job.folder / "metrics.jsonl" if trained else None,
        timings=job.folder / "timings.jsonl" if trained else None,
        seconds=provenance["seconds"],
    )


if __name__ == "__main__":
    main()
