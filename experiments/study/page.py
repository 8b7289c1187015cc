"""A study from its runs to files: `<name>.md`, `scores.csv`, `differences.csv`, pictures, `provenance.json`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.shared.committed_pages import read_page, replaced, write_page
from experiments.study.credit_dynamics import credit_section, credit_table, draw_credit, draw_profile
from experiments.study.mistakes import draw_mistakes, mistakes_section, mistakes_table
from experiments.study.studies import arm_differences, arm_scores, judged_differences
from oar.analysis.reports.differences import one_seed
from oar.analysis.reports.figures import draw_curves, draw_forest
from oar.analysis.reports.page import StudyPage, interval_text, table_lines, with_error, write_csv, write_study
from oar.evaluation.evaluate import GREEDY_METRIC, MEAN, SAMPLED_METRIC
from oar.runs.folder import Run, step_seconds
from oar.statistics.intervals import CONFIDENCE, mean_and_standard_error
from oar.statistics.power import POWER

METRICS = {SAMPLED_METRIC: "avg@k, temperature 1", GREEDY_METRIC: "pass@1, greedy"}
READING = """**How to read it.** Percent of held-out problems, mean of the tiers. *Means* are ± the standard error over training
seeds. *Differences* are an arm minus `{reference}` under the same condition, percentage points, paired by seed and by problem:
± is the standard error of the per-seed differences, in brackets the {confidence:.0%} interval. It covers two: a bootstrap that
draws seeds and problems, which few seeds can make much too narrow, and Student's over seeds, which with two is very wide
(results/coverage says how often they hold the true value). *p, Holm*: the larger of the two-sided p of both, adjusted for
the {tests} comparisons of the metric. *Seeds to show it*: how many seeds a paired test at {level:.0%} would need to find a
true difference of the size that was measured, with a chance of {power:.0%}; from two or three seeds that is a rough guess.
Where the interval holds 0, the sign is open."""


def write_results(
    about: StudyPage, runs: Sequence[Run], folder: Path, *, reference: str, credit: bool, mistakes: bool
) -> Path:
    """Write the page and its files into `folder`, each atomically; returns the page.

    `about`: the page without what was measured; `credit`: where the weights sat is part of it; `mistakes`: what the completions
    get wrong is. Everything is read and compared before anything is written. Raises DataError where runs cannot be compared.
    """
    scores, table = arm_scores(runs), arm_differences(runs, reference=reference)
    tables = {"scores.csv": scores, "differences.csv": table}
    if credit:
        tables["credit.csv"] = credit_table(runs)
    if mistakes:
        tables["mistakes.csv"] = mistakes_table(runs)
    for name, one in tables.items():
        write_csv(one, folder / name)
    draw_differences(table, folder / "forest.png", reference=reference)
    pictures = {"forest.png": f"Difference from {reference} in percentage points, with 95 % intervals"}
    labels = {arm: arm for arm in dict.fromkeys(run.arm for run in runs)}
    for condition in dict.fromkeys(run.condition for run in runs):
        of = [(run.arm, run.metrics) for run in runs if run.condition == condition]
        draw_curves(of, labels, folder / f"curves-{condition}.png")
        pictures[f"curves-{condition}.png"] = f"Learning curves, condition {condition}: seeds thin, their mean thick"
    measured = [reading(table, reference), "## Means", means_table(scores, runs)]
    for metric, title in METRICS.items():
        measured += [f"## Differences: {title}", differences_table(table[table["metric"] == metric])]
    if credit:
        draw_credit(tables["credit.csv"], folder / "credit.png")
        draw_profile(tables["credit.csv"], folder / "profile.png")
        pictures["credit.png"] = "What the weights were like while the runs trained"
        pictures["profile.png"] = "Mean weight by tenth of the reasoning, first and last kept step"
        measured.append(credit_section(tables["credit.csv"]))
    if mistakes:
        draw_mistakes(tables["mistakes.csv"], folder / "mistakes.png")
        pictures["mistakes.png"] = "What is wrong in wrong completions at temperature 1"
        measured.append(mistakes_section(tables["mistakes.csv"]))
    return write_study(replace(about, measured="\n\n".join(measured), pictures=pictures), folder)


def judge_study(folder: Path, provenance: Mapping[str, Any]) -> None:
    """differences.csv, forest.png and the parts of the page that show differences once more, from scores.csv and the bootstrap's
    ends in differences.csv.
    """
    scores, found = pd.read_csv(folder / "scores.csv"), pd.read_csv(folder / "differences.csv")
    (reference,) = set(scores["arm"]) - set(found["arm"])
    table = judged_differences(scores, found, reference=reference)
    start = "**How to read it.**"
    text = replaced(read_page(folder), start, reading(table, reference).removeprefix(start))
    for metric, title in METRICS.items():
        text = replaced(text, f"## Differences: {title}\n\n", differences_table(table[table["metric"] == metric]))
    write_csv(table, folder / "differences.csv")
    draw_differences(table, folder / "forest.png", reference=reference)
    write_page(folder, text, provenance)


def reading(table: pd.DataFrame, reference: str) -> str:
    """How the page's tables are to be read; table: `experiments.study.studies.arm_differences`."""
    tests = int(table.groupby("metric").size().max())
    return READING.format(reference=reference, confidence=CONFIDENCE, level=1 - CONFIDENCE, power=POWER, tests=tests)


def means_table(scores: pd.DataFrame, runs: Sequence[Run]) -> str:
    """A line per condition and arm: both metrics, seeds, and the median seconds of a training step."""
    means = scores[scores["benchmark"] == MEAN].groupby(["condition", "arm", "metric"])["value"]
    lines = []
    for condition, arm in dict.fromkeys((run.condition, run.arm) for run in runs):
        own = [run for run in runs if (run.condition, run.arm) == (condition, arm)]
        cells = [with_error(*mean_and_standard_error(means.get_group((condition, arm, metric)))) for metric in METRICS]
        lines.append([condition, f"`{arm}`", *cells, str(len(own)), f"{step_seconds(own):.2f}"])
    return table_lines(["condition", "arm", *METRICS.values(), "seeds", "seconds a step"], lines)


def differences_table(rows: pd.DataFrame) -> str:
    """A line per condition and arm, of one metric."""
    lines = [
        [
            row["condition"],
            f"`{row['arm']}`",
            with_error(row["difference"], row["error"], "+.1f"),
            interval_text(row["low"], row["high"]) + one_seed(row),
            f"{row['p_holm']:.3f}",
            str(row["seeds"]),
            needed_text(row["seeds_needed"], row["error"]),
        ]
        for row in rows.to_dict("records")
    ]
    return table_lines(["condition", "arm", "difference", "95 %", "p, Holm", "seeds", "seeds to show it"], lines)


def needed_text(needed: int | None, error: float) -> str:
    """How many seeds; blank where one seed shows no spread, in words where no number of them is near."""
    said = "more than 10,000" if pd.isna(needed) else f"{needed}"
    return "" if math.isnan(error) else said


def draw_differences(table: pd.DataFrame, path: Path, *, reference: str) -> None:
    """A panel per metric, a line per condition and arm. Arms differ in colour and mark."""
    arms, conditions = list(table["arm"].unique()), list(table["condition"].unique())
    lines = table[["condition", "arm"]].drop_duplicates().reset_index(drop=True)
    # A gap between conditions.
    lines["height"] = lines.index + lines["condition"].map(conditions.index) * 0.7
    lines["style"] = lines["arm"].map(arms.index) + 1
    lines["name"] = lines["arm"] + (("  (" + lines["condition"] + ")") if len(conditions) > 1 else "")
    rows = table.rename(columns={"difference": "value"}).merge(lines, on=["condition", "arm"])
    panels = {title: rows[rows["metric"] == metric] for metric, title in METRICS.items()}
    draw_forest(panels, path, xlabel=f"difference from {reference} (points)")
