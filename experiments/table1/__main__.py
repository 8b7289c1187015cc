"""Table 1, cell by cell: `python -m experiments.table1 seeds=3`. Finished cells are not repeated, so it can be interrupted.

Overrides of a run (conf/train) are those of every cell: `python -m experiments.table1 profile=single_gpu model.path=FOLDER`.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.table1.page import write_table1
from oar.analysis.claims.claims import NOT_RUN
from oar.analysis.claims.page import read_ledger
from oar.analysis.reports.methods import BASE, GRPO
from oar.command_line.entry import entry
from oar.command_line.overrides import overrides_of_runs
from oar.config import Table1Config, validated
from oar.config.composed import composed_run
from oar.evaluation.evaluate import METRICS
from oar.launch.pool import Job, joint_provenance, run_missing

TABLE_SAYS = {
    "seed": "type seeds=3 for the seeds 1 to 3",
    "method": "type methods=[grpo,oar_g]",
    "learner.steps": "type steps=100",
}


@entry
def main(config: DictConfig) -> None:
    """Plan the cells, run what is missing, write the table."""
    cfg = validated(config, Table1Config)
    folder = Path(HydraConfig.get().runtime.output_dir)
    jobs = plan(cfg, HydraConfig.get().overrides.task, folder)
    run_missing(jobs, folder / "cells", cfg.parallel_runs)
    provenance = joint_provenance(jobs, cfg.parallel_runs)
    write_table1([(job.arm, job.folder) for job in jobs], folder, provenance=provenance)
    print(overview(folder))
    print(
        f"written to {folder}: table1.md (all of it), table1.csv, claims.csv, table1.png, curves.png, provenance.json"
    )


def overview(folder: Path) -> str:
    """Of a finished table what fits a screen: means over seeds of one metric, and the verdicts."""
    scores, claims = pd.read_csv(folder / "table1.csv"), read_ledger(folder / "claims.csv")
    metric = min(scores["metric"], key=list(METRICS).index)
    means = scores[scores["metric"] == metric].pivot_table("value", "method", "benchmark", sort=False).round(1)
    tested = claims.loc[claims["verdict"] != NOT_RUN, ["paper_claim", "metric", "verdict"]]
    verdicts = tested.to_string(index=False, header=False) if len(tested) else "none"
    return (
        f"{metric}, percent, mean over seeds:\n{means.rename_axis(index=None, columns=None).to_string()}\n\n"
        f"Claims of the paper that these runs can test:\n{verdicts}\n"
    )


def plan(cfg: Table1Config, typed: Sequence[str], folder: Path) -> list[Job]:
    """Every cell, base model first, validated before any of them starts. `typed`: the overrides of the command line."""
    common = overrides_of_runs(typed, set(Table1Config.__annotations__), TABLE_SAYS)
    jobs = []
    for seed in range(1, cfg.seeds + 1):
        for arm, method in arms(cfg).items():
            overrides = [f"tracking.group='{folder.name}'", *common, f"seed={seed}", *method]
            steps = 0 if arm == BASE else cfg.steps
            overrides += [] if steps is None else [f"learner.steps={steps}"]
            jobs.append(Job(folder / "cells" / f"{arm}-seed{seed}", overrides, composed_run(overrides), arm))
    return jobs


def arms(cfg: Table1Config) -> dict[str, list[str]]:
    """Overrides by the name of what is compared: the base model, the methods, and where asked for each one's shuffled control."""
    found = {BASE: ["method=grpo"]}
    for name in cfg.methods:
        found[name] = [f"method={name}"]
        if name in cfg.shuffled and name != GRPO:
            found[f"{name}_shuffled"] = [f"method={name}", "method.control=shuffled"]
    return found


if __name__ == "__main__":
    main()
