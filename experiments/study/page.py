"""A study from its runs to files: `<name>.md`, `scores.csv`, `differences.csv`, pictures, `provenance.json`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.study.credit_dynamics import credit_changes, credit_table, draw_credit, draw_profile
from experiments.study.curves import draw_study_curves
from experiments.study.mistakes import draw_mistakes, mistakes_shares, mistakes_table
from experiments.study.overview import choice_and_gain, overview
from experiments.study.placement import QUANTITIES, placement_table
from experiments.study.rates import draw_accuracy_at_rates, with_best_rates
from experiments.study.studies import (
    arm_differences,
    arm_scores,
    judged_differences,
    judged_pairs,
    logged_means,
    pair_differences,
)
from oar.analysis.reports.differences import one_seed
from oar.analysis.reports.figures import THICK, curve_table, draw_dots
from oar.analysis.reports.methods import label, looks_of
from oar.analysis.reports.page import with_error, write_csv, write_page
from oar.common.files import atomic_path
from oar.evaluation.evaluate import GREEDY_METRIC, MEAN, SAMPLED_METRIC
from oar.runs.folder import Run, step_seconds
from oar.statistics.intervals import CONFIDENCE, mean_and_standard_error
from oar.statistics.power import POWER
from oar.tasks.words import MISTAKES

TEMPLATE = Path(__file__).with_name("page.md.j2")
PAIRS, LOGGED, PLACEMENT = "pairs.csv", "logged.csv", "placement.csv"  # of studies alone that ask for them
CURVES = "curves.parquet"  # what the runs logged of the metrics that are drawn over steps
METRICS = {SAMPLED_METRIC: "avg@k, temperature 1", GREEDY_METRIC: "pass@1, greedy"}


def write_results(about: Mapping[str, Any], runs: Sequence[Run], folder: Path, provenance: Mapping[str, Any]) -> Path:
    """Write the page and its files into `folder`, each atomically; returns the page.

    `about`: `experiments.study.__main__.described`. Everything is read and compared before anything is written. Raises DataError
    where runs cannot be compared.
    """
    if about["rates"]:
        runs, about = with_best_rates(runs, about)
    tables = {"scores.csv": arm_scores(runs), "differences.csv": arm_differences(runs, reference=about["reference"])}
    if about["pairs"]:
        tables[PAIRS] = pair_differences(runs, about["pairs"])
    if about["logged"]:
        tables[LOGGED] = logged_means(runs, list(about["logged"]))
    if about["credit"]:
        tables["credit.csv"] = credit_table(runs)
    if about["mistakes"]:
        tables["mistakes.csv"] = mistakes_table(runs)
    if about["placement"]:
        tables[PLACEMENT] = placement_table(runs)
    for name, one in tables.items():
        write_csv(one, folder / name)
    curves = [
        curve_table([(run.arm, run.metrics) for run in runs if run.condition == condition]).assign(condition=condition)
        for condition in about["conditions"]
    ]
    with atomic_path(folder / CURVES) as path:
        pd.concat(curves).to_parquet(path, index=False)
    seconds: dict[str, dict[str, float]] = {}
    for condition, arm in dict.fromkeys((run.condition, run.arm) for run in runs):
        own = (run for run in runs if (run.condition, run.arm) == (condition, arm))
        seconds.setdefault(condition, {})[arm] = step_seconds(own)
    return write_study(folder, {**provenance, "study": {**about, "seconds": seconds}})


def judge_study(folder: Path, provenance: Mapping[str, Any]) -> None:
    """differences.csv once more, from scores.csv and the bootstrap's ends in itself; then all that is made of the tables."""
    scores, found = pd.read_csv(folder / "scores.csv"), pd.read_csv(folder / "differences.csv")
    table = judged_differences(scores, found, reference=provenance["study"]["reference"])
    write_csv(table, folder / "differences.csv")
    if (folder / PAIRS).is_file():
        write_csv(judged_pairs(scores, pd.read_csv(folder / PAIRS)), folder / PAIRS)
    write_study(folder, provenance)


def write_study(folder: Path, provenance: Mapping[str, Any]) -> Path:
    """The page and the pictures of the tables in `folder`; returns the page."""
    about = provenance["study"]
    scores, table = pd.read_csv(folder / "scores.csv"), pd.read_csv(folder / "differences.csv")
    draw_differences(table, folder / "forest.png", reference=about["reference"])
    pairs = pd.read_csv(folder / PAIRS) if (folder / PAIRS).is_file() else None
    if pairs is not None:
        line = pairs["arm"].map(label) + " - " + pairs["reference"].map(label)
        draw_differences(pairs.assign(line=line), folder / "pairs.png", reference=None)
    if about.get("rates"):  # studies of before have no such key
        draw_accuracy_at_rates(scores, METRICS, folder / "rates.png")
    logged = pd.read_csv(folder / LOGGED) if (folder / LOGGED).is_file() else None
    curves = folder / CURVES  # older studies kept none, and their pictures of curves stay as they were drawn
    if curves.is_file():
        for condition, own in pd.read_parquet(curves).groupby("condition", sort=False):
            draw_study_curves(own, about, folder / f"curves-{condition}.png")
    changes: list[list[object]] = []
    shares: list[list[str]] = []
    if about["credit"]:
        credit = pd.read_csv(folder / "credit.csv")
        changes = credit_changes(credit)
        draw_credit(credit, folder / "credit.png")
        draw_profile(credit, folder / "profile.png")
    if about["mistakes"]:
        mistakes = pd.read_csv(folder / "mistakes.csv")
        shares = mistakes_shares(mistakes)
        draw_mistakes(mistakes, folder / "mistakes.png")
    choice: dict[str, Any] = {"quantities": QUANTITIES, "overview": [], "correlation": None}
    if pairs is not None and about.get("placement"):  # studies of before have no such key
        placement = pd.read_csv(folder / PLACEMENT)
        choice["overview"] = overview(about, scores, table, pairs, placement)
        choice["correlation"] = choice_and_gain(about, pairs, placement)
    return write_page(
        folder / f"{about['name']}.md",
        TEMPLATE,
        provenance,
        study=about,
        curves_kept=curves.is_file(),
        metrics=METRICS,
        means=means(scores),
        differences=table,
        pairs=pairs,
        logged=[] if logged is None else logged_rows(logged, list(about["logged"])),
        tests=table.groupby("metric").size().max(),
        pair_tests=0 if pairs is None else pairs.groupby("metric").size().max(),
        one_seed=one_seed,
        changes=changes,
        shares=shares,
        kinds=MISTAKES,
        **choice,
        confidence=f"{CONFIDENCE:.0%}",
        level=f"{1 - CONFIDENCE:.0%}",
        power=f"{POWER:.0%}",
    )


def means(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """A row per condition and arm: both metrics with their standard errors, and the number of seeds."""
    rows = []
    for (condition, arm), own in scores[scores["benchmark"] == MEAN].groupby(["condition", "arm"], sort=False):
        by_metric = own.groupby("metric")["value"]
        cells = [with_error(*mean_and_standard_error(by_metric.get_group(metric))) for metric in METRICS]
        rows.append({"condition": condition, "arm": arm, "cells": cells, "seeds": own["seed"].nunique()})
    return rows


def logged_rows(table: pd.DataFrame, names: Sequence[str]) -> list[list[object]]:
    """A line per condition and arm: what `logged_means` found of each name, ± the standard error over seeds."""
    lines: list[list[object]] = []
    for (condition, arm), own in table.groupby(["condition", "arm"], sort=False):
        values = [own.loc[own["name"] == name, "value"].to_numpy() for name in names]
        cells = [with_error(*mean_and_standard_error(of), ".3f") if len(of) else "" for of in values]
        lines.append([condition, f"`{arm}`", *cells])
    return lines


def draw_differences(table: pd.DataFrame, path: Path, *, reference: str | None) -> None:
    """A panel per metric, a line per condition and arm, which has the arm's name where the table has no column `line`.

    `reference`: what all are compared with; None where each line says it.
    """
    against = f"difference from {label(reference)} (points)" if reference else "difference (points)"
    several = table["condition"].nunique() > 1
    line = table.get("line", table["arm"].map(label)) + ("  (" + table["condition"] + ")" if several else "")
    rows = table.rename(columns={"difference": "value", "arm": "series"}).assign(line=line)
    panels = {title: rows[rows["metric"] == metric] for metric, title in METRICS.items()}
    draw_dots(
        panels,
        path,
        looks=looks_of(list(rows["series"].unique())),
        beside=dict.fromkeys(panels, 0.0),
        xlabel=dict.fromkeys(panels, against),
        note=THICK,
    )
