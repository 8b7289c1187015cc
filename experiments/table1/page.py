"""Table 1: base model, GRPO and OAR from finished cells to files.

Writes `table1.csv` (tidy, one row per seed), `differences.csv`, `scores.parquet` (right samples by problem), `claims.csv` (the
claim ledger), `table1.md`, `table1.png`, `curves.png` and `provenance.json`. What the paper reports stands in sections of its
own and never enters our numbers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from oar.analysis.claims.claims import load_claims
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import claims_section, table_text, write_claims
from oar.analysis.reports.differences import SCORES, differences, differences_section, read_problem_scores
from oar.analysis.reports.figures import draw_curves, draw_table1, with_sampling
from oar.analysis.reports.methods import BASE, GRPO, label, method_order
from oar.common.errors import DataError
from oar.common.files import atomic_path, write_text_atomic
from oar.evaluation.evaluate import MEAN, METRICS
from oar.runs.folder import Run, full_steps, read_lines, read_run
from oar.statistics.intervals import mean_and_standard_error

COLUMNS = ["profile", "method", "seed", "benchmark", "metric", "k", "value", "n"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One finished run: a method under one seed. The base model is not trained: no `metrics`, no `timings`."""

    profile: str
    method: str
    seed: int
    evaluation: Path  # evaluation.csv of oar.evaluation.evaluate
    metrics: Path | None  # metrics.jsonl and timings.jsonl of oar.runs.tracking
    timings: Path | None
    seconds: float  # wall clock of the whole cell


def write_table1(cells: Sequence[Cell], folder: Path, *, reference: Path, provenance: Mapping[str, object]) -> None:
    """Write the eight files into `folder`, each atomically; `scores.parquet` only where a run holds scores of single problems.

    `reference`: the folder of the paper's values and claims (results/reference); `provenance`:
    oar.common.provenance.collect_provenance.
    Scores of single problems come from each cell's samples.parquet, else from the `scores.parquet` that stands in `folder`.
    Raises DataError when a file is missing, a cell occurs twice, or cells do not measure the same thing.
    """
    cells = sorted(cells, key=lambda cell: (method_order(cell.method), cell.seed))
    labels = {cell.method: label(cell.method) for cell in cells}
    # Everything is read before anything is written: an unfinished cell leaves the last table as it was.
    scores = read_scores(cells)
    runs = [(cell.method, read_lines(cell.metrics)) for cell in cells if cell.metrics is not None]
    runs_by_key = {(cell.method, cell.seed): cell.evaluation.parent for cell in cells}
    problems = read_problem_scores(runs_by_key, folder / SCORES, scores)
    compared = differences(scores, problems)
    claims = ledger(load_claims(reference), [_trained(cell, problems) for cell in cells if cell.metrics], full_steps())
    text = markdown(cells, scores, compared, _read_csv(reference / "paper.csv", text=True), claims, provenance)
    with atomic_path(folder / "table1.csv") as path:
        scores[COLUMNS].to_csv(path, index=False)
    with atomic_path(folder / "differences.csv") as path:
        compared.to_csv(path, index=False)
    if len(problems):
        with atomic_path(folder / SCORES) as path:
            problems.to_parquet(path, index=False, compression="zstd")
    write_claims(claims, folder / "claims.csv")
    write_text_atomic(folder / "table1.md", text)
    draw_table1(scores, labels, folder / "table1.png")
    draw_curves(runs, labels, folder / "curves.png")
    record = {
        **provenance,
        "cells": [{"method": cell.method, "seed": cell.seed, "seconds": cell.seconds} for cell in cells],
    }
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")


def _trained(cell: Cell, problems: pd.DataFrame) -> Run:
    """The run of a cell, with the scores of its problems that a table keeps."""
    own = problems[(problems["method"] == cell.method) & (problems["seed"] == cell.seed)]
    return replace(read_run(cell.evaluation.parent), kept=own)


def read_scores(cells: Sequence[Cell]) -> pd.DataFrame:
    """All evaluations, one row per cell, metric and benchmark: COLUMNS and `temperature`."""
    if not cells:
        raise DataError("Table 1 needs at least one finished cell, got none.")
    frames = []
    for cell in cells:
        frame = _read_csv(cell.evaluation)
        missing = {"benchmark", "metric", "k", "temperature", "value", "n"} - set(frame.columns)
        if missing:
            raise DataError(f"{cell.evaluation} lacks the columns {sorted(missing)}: evaluate this cell again.")
        frames.append(frame.assign(profile=cell.profile, method=cell.method, seed=cell.seed))
    # The mean over benchmarks of different k has none, and the others are whole numbers still.
    scores = pd.concat(frames, ignore_index=True)[[*COLUMNS, "temperature"]].astype({"k": "Int64"})
    if scores["profile"].nunique() != 1:
        raise DataError(f"One table compares methods within one profile, got {sorted(scores['profile'].unique())}.")
    if scores.duplicated(["method", "seed", "benchmark", "metric"]).any():
        raise DataError("Table 1 got the same method, seed, benchmark and metric twice: pass every cell once.")
    for (benchmark, metric), group in scores.groupby(["benchmark", "metric"]):
        if len(group) != len(cells) or len(group[["k", "n", "temperature"]].drop_duplicates()) != 1:
            raise DataError(
                f"The cells do not measure {metric} on {benchmark} alike: each of the {len(cells)} cells must have it, "
                "with the same k, temperature and number of problems."
            )
    return scores


def markdown(
    cells: Sequence[Cell],
    scores: pd.DataFrame,
    compared: pd.DataFrame,
    paper: pd.DataFrame,
    claims: pd.DataFrame,
    provenance: Mapping[str, object],
) -> str:
    """The text of table1.md."""
    parts = [
        "# Table 1",
        f"Profile `{cells[0].profile}`, measured by this code. Percentages; a cell is the mean ± its standard error "
        "over n training seeds (one seed has no standard error). Differences are paired by seed: the standard error is "
        "that of the per-seed differences. Overhead: median seconds of a training step, relative to GRPO.",
    ]
    overhead = _overhead(cells)
    for metric, title in METRICS.items():
        rows = scores[scores["metric"] == metric]
        if not rows.empty:
            problems = rows[rows["benchmark"] != MEAN].drop_duplicates("benchmark")
            several = problems["k"].nunique() > 1
            counts = ", ".join(
                f"{row.benchmark} {row.n}{f' (k = {row.k})' if several else ''}" for row in problems.itertuples()
            )
            parts += [f"## {with_sampling(title, rows)}", f"Problems: {counts}.", _score_table(rows, overhead)]
    if len(compared):
        parts.append(differences_section(compared))
    parts.append("![accuracy by benchmark](table1.png)\n\n![learning curves](curves.png)")
    parts += ["## Provenance", _provenance_table(cells, provenance), *_paper_section(paper)]
    parts.append(claims_section(claims, cells[0].profile))
    return "\n\n".join(parts) + "\n"


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
    return table_text(["method", *benchmarks, "mean − base", "mean − GRPO", "overhead"], table)


def _difference(values: "pd.Series[float]", method: str, other: str) -> str:
    means = values.xs(MEAN, level="benchmark").unstack("method")
    differences = (means[method] - means[other]).dropna()
    return _cell(differences, sign="+") if len(differences) else ""  # no seed in common: nothing to pair


def _cell(values: "pd.Series[float]", sign: str = "") -> str:
    mean, error = mean_and_standard_error(values)
    spread = "" if error is None else f" ± {error:.1f}"
    return f"{mean:{sign}.1f}{spread}, n={len(values)}"


def _overhead(cells: Sequence[Cell]) -> dict[str, str]:
    """By method: median seconds per training step over all seeds, relative to GRPO where there is one."""
    totals: dict[str, list[float]] = {}
    for cell in cells:
        if cell.timings is not None:
            totals.setdefault(cell.method, []).extend(read_lines(cell.timings)["total"].dropna())
    medians = {method: float(pd.Series(seconds).median()) for method, seconds in totals.items()}
    text = {}
    for method, seconds in medians.items():
        ratio = f"{seconds / medians[GRPO]:.2f}x " if GRPO in medians else ""
        text[method] = f"{ratio}({seconds:.2f} s/step)"
    return text


def _provenance_table(cells: Sequence[Cell], provenance: Mapping[str, object]) -> str:
    rows = []
    for name, value in provenance.items():
        content = (
            ", ".join(f"{k} {v}" for k, v in value.items() if v is not None) if isinstance(value, Mapping) else value
        )
        rows.append([name, "" if content is None else str(content).replace("|", "\\|").replace("\n", " ")])
    for method in dict.fromkeys(cell.method for cell in cells):
        seconds = [f"{cell.seconds:.0f}" for cell in cells if cell.method == method]
        rows.append([f"seconds of {label(method)}, by seed", ", ".join(seconds)])
    return table_text(["", ""], rows)


def _paper_section(paper: pd.DataFrame) -> list[str]:
    source = "; ".join(paper["source"].unique())
    return [
        "---",
        "# What the paper reports (not measured here)",
        f"Source: {source}. Copied for comparison; a blank is a value we do not hold. The tiers `words1` ... `words5` "
        "of the embedded profile are generated word problems for a 0.5 M parameter model, not these benchmarks: the "
        "two tables cannot be compared number by number.",
        table_text([*paper.columns.drop("source")], paper.drop(columns="source").to_numpy().tolist()),
    ]


def _read_csv(path: Path, *, text: bool = False) -> pd.DataFrame:
    """`text` keeps cells as they are written: 1.0 stays 1.0 and a blank stays blank."""
    if not path.exists():
        raise DataError(f"{path} is missing: finish that cell, or correct the path.")
    return pd.read_csv(path, dtype=str, keep_default_na=False) if text else pd.read_csv(path)
