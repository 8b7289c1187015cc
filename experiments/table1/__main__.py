"""Table 1, cell by cell: `python -m experiments.table1 seeds=3`. Finished cells are not repeated, so it can be interrupted.

Overrides of a run (conf/train) are those of every cell: `python -m experiments.table1 profile=single_gpu model.path=FOLDER`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.table1.page import write_table1
from oar.analysis.claims.claims import NOT_RUN
from oar.analysis.claims.page import read_ledger
from oar.analysis.reports.methods import BASE, GRPO
from oar.analysis.reports.page import with_error
from oar.command_line.entry import entry
from oar.command_line.overrides import options_of, overrides_of_runs, quoted
from oar.config import Table1Config, validated
from oar.config.composed import composed_run
from oar.evaluation.evaluate import METRICS
from oar.launch.pool import Job, joint_provenance, run_missing
from oar.statistics.intervals import mean_and_standard_error

SHUFFLED = "_shuffled"
TABLE_SAYS = {
    "seed": "type seeds=3 for the seeds 1 to 3",
    "method": "type methods=[grpo,oar_g]",
    "method.control": "type shuffled=[oar_g], which sets it beside the method",
    "learner.steps": "type steps=100",
}


@entry
def main(config: DictConfig) -> None:
    """Plan the cells, run what is missing, write the table."""
    cfg = validated(config, Table1Config)
    folder = Path(HydraConfig.get().runtime.output_dir)
    jobs = plan(cfg, HydraConfig.get().overrides.task, folder)
    run_missing(jobs, folder / "cells", cfg.parallel_runs)
    there = already_there(cfg, HydraConfig.get().overrides.task, folder, jobs)
    provenance = joint_provenance([*there, *jobs], cfg.parallel_runs)
    provenance["earlier"] = commands(folder, but=provenance["command"]) if there else []
    write_table1([(job.arm, job.folder) for job in [*there, *jobs]], folder, provenance=provenance)
    print(overview(folder))
    print(
        f"written to {folder}: table1.md (all of it), table1.csv, claims.csv, table1.png, curves.png, provenance.json"
    )


def overview(folder: Path) -> str:
    """Of a finished table what fits a screen: means over seeds of one metric, and the verdicts."""
    scores, claims = pd.read_csv(folder / "table1.csv"), read_ledger(folder / "claims.csv")
    metric = min(scores["metric"], key=list(METRICS).index)
    rows = scores[scores["metric"] == metric]
    means = rows.pivot_table("value", "method", "benchmark", aggfunc=_mean_over_seeds, sort=False)
    tested = claims.loc[claims["verdict"] != NOT_RUN, ["paper_claim", "metric", "verdict"]]
    verdicts = tested.to_string(index=False, header=False) if len(tested) else "none"
    return (
        f"{metric}, percent, mean over seeds:\n{means.rename_axis(index=None, columns=None).to_string()}\n\n"
        f"Claims of the paper that these runs can test:\n{verdicts}\n"
    )


def _mean_over_seeds(values: "pd.Series[float]") -> str:
    """As table1.md has it."""
    return with_error(mean_and_standard_error(values)[0], None)


def plan(cfg: Table1Config, typed: Sequence[str], folder: Path) -> list[Job]:
    """Every cell, base model first, validated before any of them starts. `typed`: the overrides of the command line."""
    return [cell(cfg, typed, folder, arm, seed) for seed in range(1, cfg.seeds + 1) for arm in arms(cfg)]


def already_there(cfg: Table1Config, typed: Sequence[str], folder: Path, asked: Sequence[Job]) -> list[Job]:
    """Cells that other commands have finished in this folder, of other methods or seeds and otherwise the same settings."""
    own, jobs = {job.folder for job in asked}, []
    for path in sorted((folder / "cells").glob("*-seed[0-9]*/evaluation.json")):
        arm, _, seed = path.parent.name.rpartition("-seed")
        if path.parent not in own and seed.isdecimal() and arm.removesuffix(SHUFFLED) in (BASE, *options_of("method")):
            jobs.append(cell(cfg, typed, folder, arm, int(seed)))
    return [job for job in jobs if job.provenance() is not None]


def commands(folder: Path, but: str) -> list[str]:
    """Those that made the table which stands in the folder, `but` one of them."""
    file = folder / "provenance.json"
    made = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"command": but}
    return [one for one in [*made.get("earlier", []), made["command"]] if one != but]


def cell(cfg: Table1Config, typed: Sequence[str], folder: Path, arm: str, seed: int) -> Job:
    """One of them. An arm is the base model, a method, or a method with its own weights on other tokens."""
    common = overrides_of_runs(typed, set(Table1Config.__annotations__), TABLE_SAYS)
    method = "grpo" if arm == BASE else arm.removesuffix(SHUFFLED)
    control = ["method.control=shuffled"] if arm.endswith(SHUFFLED) else []
    steps = 0 if arm == BASE else cfg.steps
    overrides = [f"tracking.group={quoted(folder.name)}", *common, f"seed={seed}", f"method={method}", *control]
    overrides += [] if steps is None else [f"learner.steps={steps}"]
    return Job(folder / "cells" / f"{arm}-seed{seed}", overrides, composed_run(overrides), arm)


def arms(cfg: Table1Config) -> list[str]:
    """What is compared: the base model, the methods, and where asked for each one's shuffled control."""
    shuffled = set(cfg.shuffled) - {GRPO}
    return [BASE, *(arm for name in cfg.methods for arm in (name, *([name + SHUFFLED] if name in shuffled else [])))]


if __name__ == "__main__":
    main()
