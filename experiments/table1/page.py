"""Table 1: base model, GRPO and OAR from finished cells to files.

Writes `table1.csv` (tidy, one row per seed), `differences.csv`, `scores.parquet` (right samples by problem), `claims.csv` (the
claim ledger), `table1.md`, `table1.png`, `curves.png` and `provenance.json`. What the paper reports stands in sections of its
own and never enters our numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oar.analysis.claims.claims import REFERENCE, load_claims
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import claims_section
from oar.analysis.reports.differences import differences_section, method_differences
from oar.analysis.reports.figures import THICK, curve_table, draw_curves, draw_dots, with_sampling
from oar.analysis.reports.methods import BASE, GRPO, label, looks_of, method_order
from oar.analysis.reports.page import records, table_lines, with_error, write_csv, write_page
from oar.analysis.thresholds import STEPS
from oar.common.errors import DataError
from oar.common.files import atomic_path
from oar.common.provenance import ROOT, machines, where_made
from oar.evaluation.evaluate import MEAN, METRICS
from oar.evaluation.graded import RIGHT
from oar.runs.folder import Run, full_steps, read_run, step_seconds
from oar.runs.tracking import TIMINGS
from oar.statistics.intervals import mean_and_standard_error

TEMPLATE = Path(__file__).with_name("page.md.j2")
# Committed below results: where else the paper's claims hold. Before a regime stands its model, but for the embedded one.
REGIMES = {"": "ceilings", "SmolLM2 ": "smollm2/ceilings"}
COLUMNS = ["profile", "method", "seed", "benchmark", "metric", "k", "value", "n"]
SCORES = "scores.parquet"  # of all runs: their samples.parquet are too large to be committed
KEYS = ["method", "seed", "benchmark", "metric"]


def write_table1(cells: Sequence[tuple[str, Path]], folder: Path, *, provenance: Mapping[str, Any]) -> None:
    """Write the eight files into `folder`, each atomically; `scores.parquet` only where a run holds scores of single problems.

    `cells`: the method and the folder of each finished run; `provenance`: oar.common.provenance.collect_provenance. Scores of
    single problems come from each cell's samples.parquet, else from the `scores.parquet` that stands in `folder`. Raises
    DataError when a file is missing, a cell occurs twice, or cells do not measure the same thing.
    """
    # Everything is read before anything is written: an unfinished cell leaves the last table as it was.
    runs = sorted(read_cells(cells, folder / SCORES), key=lambda run: (method_order(run.arm), run.seed))
    methods = list(dict.fromkeys(run.arm for run in runs))
    scores, problems, trained = read_scores(runs), problems_of(runs), [run for run in runs if run.arm != BASE]
    compared = method_differences(runs, scores["metric"].unique().tolist())
    claims = ledger(load_claims(), trained, full_steps(), costs_in_regimes())
    paper = pd.read_csv(REFERENCE / "paper.csv", dtype=str, keep_default_na=False)  # 1.0 stays 1.0, a blank stays blank
    curves, overhead = curve_table([(run.arm, run.metrics) for run in trained]), _overhead(runs)
    write_csv(scores[COLUMNS], folder / "table1.csv")
    write_csv(compared, folder / "differences.csv")
    if len(problems):
        with atomic_path(folder / SCORES) as path:
            problems.to_parquet(path, index=False, compression="zstd")
    write_csv(claims, folder / "claims.csv")
    draw_table1(scores, compared, folder / "table1.png")
    draw_curves(curves, methods, folder / "curves.png")
    made = [{"method": run.arm, "seed": run.seed, "seconds": run.provenance["seconds"]} for run in runs]
    profile = runs[0].settings.profile
    of_metrics = [(title, scores[scores["metric"] == metric]) for metric, title in METRICS.items()]
    write_page(
        folder / "table1.md",
        TEMPLATE,
        # Lists of commits and machines in the order of the cells, whichever of them this command has run.
        {**provenance, **where_made([run.provenance for run in runs]), "cells": made},
        profile=profile,
        metrics=[_scored(title, rows, overhead) for title, rows in of_metrics if len(rows)],
        differences=differences_section(compared) if len(compared) else "",
        seconds={method: [f"{one['seconds']:.0f}" for one in made if one["method"] == method] for method in methods},
        stages=seconds_by_stage(runs),
        paper=paper,
        claims=claims_section(claims, profile),
    )


def judge_table1(folder: Path, provenance: Mapping[str, Any]) -> None:
    """All of its files once more, from its committed cells and scores.parquet."""
    cells = [(one["method"], folder / "cells" / f"{one['method']}-seed{one['seed']}") for one in provenance["cells"]]
    made = {key: value for key, value in provenance.items() if key != "cells"}
    write_table1(cells, folder, provenance=made)


def costs_in_regimes() -> pd.DataFrame | None:
    """Runs to a threshold on sheets, of all models; None where none are committed."""
    tables = {model: ROOT / "results" / folder / STEPS for model, folder in REGIMES.items()}
    read = [(model, pd.read_csv(table)) for model, table in tables.items() if table.is_file()]
    return pd.concat([costs.assign(condition=model + costs["condition"]) for model, costs in read]) if read else None


def read_cells(cells: Sequence[tuple[str, Path]], saved: Path) -> list[Run]:
    """The runs; those whose samples.parquet is not there have their scores of `saved`, the table's scores.parquet.

    Raises DataError where the problems of a run do not average to its evaluation.csv: they are of another run.
    """
    columns = ["method", "seed", *RIGHT]
    earlier = pd.read_parquet(saved) if saved.is_file() else pd.DataFrame(columns=columns)
    if set(columns) - set(earlier.columns):
        raise DataError(f"{saved} must have the columns {', '.join(columns)}: delete it, and make the table again.")
    runs = []
    for method, folder in cells:
        run = read_run(folder, arm=method)
        own = earlier[(earlier["method"] == method) & (earlier["seed"] == run.seed)]
        runs.append(replace(run, saved_problems=own[RIGHT]))
        _check_problems(runs[-1], saved)
    return runs


def _check_problems(run: Run, saved: Path) -> None:
    for metric in METRICS:
        stated = run.benchmark_scores(metric)
        for name, scores in run.problem_scores(metric).items():
            value = stated[name][0] if name in stated else np.nan
            if not np.isclose(scores.mean(), value, atol=1e-6):
                raise DataError(
                    f"{run.arm}, seed {run.seed}: the problems' {metric} on {name} averages to {scores.mean():.3f}, but its "
                    f"evaluation.csv says {value:.3f}. samples.parquet of the run, or {saved}, is of another one: delete it, and "
                    "make the table again."
                )


def problems_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Right samples by problem of all runs, as scores.parquet holds them."""
    frames = [run.problems.assign(method=run.arm, seed=run.seed) for run in runs if run.problems is not None]
    found = pd.concat(frames, ignore_index=True)[[*KEYS, "k", "problem_id", "right"]]
    return found.astype({"seed": int, "k": int, "right": int})


def read_scores(runs: Sequence[Run]) -> pd.DataFrame:
    """All evaluations, one row per run, metric and benchmark: COLUMNS and `temperature`."""
    if not runs:
        raise DataError("Table 1 needs at least one finished cell, got none.")
    frames = []
    for run in runs:
        missing = {"benchmark", "metric", "k", "temperature", "value", "n"} - set(run.scores.columns)
        if missing:
            raise DataError(
                f"{run.folder}/evaluation.csv lacks the columns {sorted(missing)}: evaluate this cell again."
            )
        accuracies = run.scores[
            run.scores["metric"].isin(METRICS)
        ]  # not the mean rewards that some runs have beside them
        frames.append(accuracies.assign(profile=run.settings.profile, method=run.arm, seed=run.seed))
    # The mean over benchmarks of different k has none, and the others are whole numbers still.
    scores = pd.concat(frames, ignore_index=True)[[*COLUMNS, "temperature"]].astype({"k": "Int64"})
    if scores["profile"].nunique() != 1:
        raise DataError(f"One table compares methods within one profile, got {sorted(scores['profile'].unique())}.")
    if scores.duplicated(KEYS).any():
        raise DataError("Table 1 got the same method, seed, benchmark and metric twice: pass every cell once.")
    for (benchmark, metric), group in scores.groupby(["benchmark", "metric"]):
        if len(group) != len(runs) or len(group[["k", "n", "temperature"]].drop_duplicates()) != 1:
            raise DataError(
                f"The cells do not measure {metric} on {benchmark} alike: each of the {len(runs)} cells must have it, "
                "with the same k, temperature and number of problems."
            )
    return scores


def draw_table1(scores: pd.DataFrame, compared: pd.DataFrame, path: Path) -> None:
    """Above, a panel per metric, a line per benchmark: each method's mean and its standard error over seeds. Below, the same
    lines with the methods' differences from GRPO.
    """
    groups = scores.groupby(["metric", "benchmark", "method"], sort=False)["value"]
    means = groups.agg(["mean", "sem"]).reset_index()
    error = means["sem"].fillna(0.0)  # one seed: no bar
    means = means.assign(value=means["mean"], low=means["mean"] - error, high=means["mean"] + error)
    titles = {
        metric: with_sampling(title, scores[scores["metric"] == metric])
        for metric, title in METRICS.items()
        if metric in set(scores["metric"])
    }
    panels = {title: means[means["metric"] == metric] for metric, title in titles.items()}
    xlabel = dict.fromkeys(panels, "correct (%)")
    beside = {}
    if len(compared):
        differences = compared[compared["against"] == GRPO].rename(columns={"difference": "value"})
        below = {f"{title}: minus GRPO": differences[differences["metric"] == of] for of, title in titles.items()}
        panels, beside = panels | below, dict.fromkeys(below, 0.0)
        xlabel |= dict.fromkeys(below, "difference (points)")
    panels = {title: rows.rename(columns={"benchmark": "line", "method": "series"}) for title, rows in panels.items()}
    seeds = scores.groupby("method")["seed"].nunique()
    count = f"{seeds.min()}" if seeds.nunique() == 1 else f"{seeds.min()} to {seeds.max()}"
    bars = "; bars above: standard error over seeds" if seeds.max() > 1 else ""
    note = f"Profile {scores['profile'].iloc[0]}, seeds per method: {count}{bars}" + (
        f"\nbelow: {THICK}" if beside else ""
    )
    methods = looks_of(list(scores["method"].unique()))
    draw_dots(panels, path, looks=methods, columns=len(titles), beside=beside, xlabel=xlabel, note=note)


def _scored(title: str, rows: pd.DataFrame, overhead: Mapping[str, str]) -> dict[str, Any]:
    """What the page says of one metric."""
    problems = rows[rows["benchmark"] != MEAN].drop_duplicates("benchmark")
    return {
        "title": with_sampling(title, rows),
        "problems": records(problems),
        "several": problems["k"].nunique() > 1,
        "scores": _score_table(rows, overhead),
    }


def _score_table(rows: pd.DataFrame, overhead: Mapping[str, str]) -> str:
    values = rows.set_index(["method", "benchmark", "seed"])["value"].sort_index()
    benchmarks = [name for name in rows["benchmark"].unique() if name != MEAN] + [MEAN]
    methods = list(rows["method"].unique())
    table = []
    for method in methods:
        line = [label(method), *(_cell(values[method, benchmark]) for benchmark in benchmarks)]
        for other in (BASE, GRPO):
            line.append(_difference(values, method, other) if other in methods and method != other else "")
        table.append([*line, overhead.get(method, "")])
    return table_lines(["method", *benchmarks, "mean − base", "mean − GRPO", "overhead"], table)


def _difference(values: "pd.Series[float]", method: str, other: str) -> str:
    means = values.xs(MEAN, level="benchmark").unstack("method")
    differences = (means[method] - means[other]).dropna()
    return _cell(differences, sign="+") if len(differences) else ""  # no seed in common: nothing to pair


def _cell(values: "pd.Series[float]", sign: str = "") -> str:
    return f"{with_error(*mean_and_standard_error(values), f'{sign}.1f')}, n={len(values)}"


def seconds_by_stage(runs: Sequence[Run]) -> pd.DataFrame:
    """By method where the seconds of a run go, mean over seeds: the stages of all its steps, the points of its curve, and the
    rest, which is its start and its final evaluation (not of runs that were taken up again).

    Where runs were made on several machines, on each of them.
    """
    rows = []
    several = len({machine for run in runs for machine in machines(run.provenance)}) > 1
    for run in runs:
        where = {"machine": machines(run.provenance)[0]} if several else {}
        logged = run.timings.sum() if (run.folder / TIMINGS).exists() else pd.Series(dtype=float)
        stages = logged.drop("total", errors="ignore").rename({"evaluation": "curve"}).sort_values(ascending=False)
        whole = float(run.provenance["seconds"])
        # Of a run that was taken up again they are those of its last process. Runs of old do not say their first step.
        if run.provenance.get("first_step", 1) > 1 or whole < stages.sum():
            whole = np.nan
        rest = {"start and final evaluation": whole - stages.sum(), "whole run": whole}
        rows.append({"method": label(run.arm), **where, **stages, **rest})
    means = pd.DataFrame(rows[::-1]).groupby(["method", *where], sort=False).mean()[::-1]
    last = ["start and final evaluation", "whole run"]
    return means[[*means.columns.drop(last), *last]].round().astype("Int64").reset_index()


def _overhead(runs: Sequence[Run]) -> dict[str, str]:
    """By method: median seconds of a training step, and the times that they are GRPO's under the same seed and on the same
    machine, geometric mean over seeds; no times where they shared none.
    """
    trained = [run for run in runs if run.arm != BASE]
    seconds = {(run.arm, run.seed, *machines(run.provenance)): step_seconds([run]) for run in trained}
    text = {}
    for method in dict.fromkeys(run.arm for run in trained):
        own = {tuple(where): of for (arm, *where), of in seconds.items() if arm == method}
        times = [of / seconds[GRPO, *where] for where, of in own.items() if (GRPO, *where) in seconds]
        ratio = f"{np.exp(np.log(times).mean()):.2f}x " if times else ""
        text[method] = f"{ratio}({np.median([*own.values()]):.2f} s/step)"
    return text
