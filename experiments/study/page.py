"""A study from its runs to files: `<name>.md`, `scores.csv`, `differences.csv`, pictures, `provenance.json`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study.credit_dynamics import credit_table
from experiments.study.credit_dynamics_page import credit_section, draw_credit, draw_profile
from experiments.study.mistakes import mistakes_table
from experiments.study.mistakes_page import draw_mistakes, mistakes_section
from experiments.study.studies import Finished, arm_scores, differences, mean_scores
from oar.analysis.reports.differences import one_seed
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, draw_curves, save_png
from oar.analysis.reports.study_page import StudyPage, write_study
from oar.analysis.reports.tables import table_lines
from oar.common.files import atomic_path
from oar.evaluation.evaluate import GREEDY_METRIC, SAMPLED_METRIC
from oar.statistics.intervals import CONFIDENCE
from oar.statistics.power import POWER

FAR = 3.0  # of the median reach of the intervals: an arm beyond is not drawn to scale
METRICS = {SAMPLED_METRIC: "avg@k, temperature 1", GREEDY_METRIC: "pass@1, greedy"}
READING = """**How to read it.** Percent of held-out problems, mean of the tiers. *Means* are ± the standard error over training
seeds. *Differences* are an arm minus `{reference}` under the same condition, percentage points, paired by seed and by problem:
± is the standard error of the per-seed differences, in brackets the {confidence:.0%} interval. It covers two: a bootstrap that
draws seeds and problems, which few seeds can make much too narrow, and Student's over seeds, which with two is very wide
(results/coverage says how often they hold the true value). *p, Holm*: the larger of the two-sided p of both, adjusted for
the {tests} comparisons of the metric. *Seeds to show it*: how many seeds a paired test at {level:.0%} would need to find a
true difference of the size that was measured, with a chance of {power:.0%}; from two or three seeds that is a rough guess.
Where the interval holds 0, the sign is open."""


@dataclass(frozen=True, slots=True)
class Study:
    """What is said of a study; `credit`: where its weights sat is part of it; `mistakes`: what its runs get wrong is."""

    name: str
    title: str
    question: str
    paper: str
    ran: str
    reference: str
    credit: bool
    mistakes: bool
    repeat: str


def write_results(study: Study, runs: Sequence[Finished], folder: Path, *, provenance: Mapping[str, object]) -> Path:
    """Write the page and its files into `folder`, each atomically; returns the page.

    Everything is read and compared before anything is written. Raises DataError where runs cannot be compared.
    """
    scores = arm_scores(runs)
    table = differences(runs, reference=study.reference)
    credit = credit_table(runs) if study.credit else None
    mistakes = mistakes_table(runs) if study.mistakes else None
    with atomic_path(folder / "scores.csv") as path:
        scores.to_csv(path, index=False)
    with atomic_path(folder / "differences.csv") as path:
        table.to_csv(path, index=False)
    draw_forest(table, folder / "forest.png", reference=study.reference)
    pictures = {"forest.png": f"Difference from {study.reference} in percentage points, with 95 % intervals"}
    conditions = list(dict.fromkeys(one.condition for one in runs))
    labels = {arm: arm for arm in dict.fromkeys(one.arm for one in runs)}
    for condition in conditions:
        of = [(one.arm, one.run.metrics) for one in runs if one.condition == condition]
        draw_curves(of, labels, folder / f"curves-{condition}.png")
        pictures[f"curves-{condition}.png"] = f"Learning curves, condition {condition}: seeds thin, their mean thick"
    measured = [*_measured(scores, table, runs, study.reference)]
    if credit is not None:
        with atomic_path(folder / "credit.csv") as path:
            credit.to_csv(path, index=False)
        draw_credit(credit, folder / "credit.png")
        draw_profile(credit, folder / "profile.png")
        pictures["credit.png"] = "What the weights were like while the runs trained"
        pictures["profile.png"] = "Mean weight by tenth of the reasoning, first and last kept step"
        measured.append(credit_section(credit))
    if mistakes is not None:
        with atomic_path(folder / "mistakes.csv") as path:
            mistakes.to_csv(path, index=False)
        draw_mistakes(mistakes, folder / "mistakes.png")
        pictures["mistakes.png"] = "What is wrong in wrong completions at temperature 1"
        measured.append(mistakes_section(mistakes))
    page = StudyPage(
        name=study.name,
        title=study.title,
        question=study.question,
        paper=study.paper,
        ran=study.ran,
        measured="\n\n".join(measured),
        pictures=pictures,
        repeat=study.repeat,
        provenance=provenance,
    )
    return write_study(page, folder)


def _measured(scores: pd.DataFrame, table: pd.DataFrame, runs: Sequence[Finished], reference: str) -> list[str]:
    parts = [
        reading(table, reference),
        "## Means",
        means_table(scores, runs),
    ]
    for metric, title in METRICS.items():
        parts += [f"## Differences: {title}", differences_table(table[table["metric"] == metric])]
    return parts


def reading(table: pd.DataFrame, reference: str) -> str:
    """How the page's tables are to be read; table: `experiments.study.studies.differences`."""
    tests = int(table.groupby("metric").size().max())
    return READING.format(reference=reference, confidence=CONFIDENCE, level=1 - CONFIDENCE, power=POWER, tests=tests)


def means_table(scores: pd.DataFrame, runs: Sequence[Finished]) -> str:
    """A line per condition and arm: both metrics, seeds, and the median seconds of a training step."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for one in runs:
        seconds.setdefault((one.condition, one.arm), []).extend(one.run.timings["total"].dropna())
    means = {(row["condition"], row["arm"], row["metric"]): row for row in mean_scores(scores).to_dict("records")}
    lines = []
    for (condition, arm), took in seconds.items():
        cells = [means[(condition, arm, metric)] for metric in METRICS]
        lines.append(
            [
                condition,
                f"`{arm}`",
                *(with_error(cell["value"], cell["error"]) for cell in cells),
                f"{cells[0]['seeds']:.0f}",
                f"{pd.Series(took).median():.2f}",
            ]
        )
    return table_lines(["condition", "arm", *METRICS.values(), "seeds", "seconds a step"], lines)


def differences_table(rows: pd.DataFrame) -> str:
    """A line per condition and arm, of one metric."""
    lines = [
        [
            row["condition"],
            f"`{row['arm']}`",
            with_error(row["difference"], row["error"], sign="+"),
            f"[{row['low']:+.1f}, {row['high']:+.1f}]{one_seed(row)}",
            f"{row['p_holm']:.3f}",
            str(row["seeds"]),
            needed_text(row["seeds_needed"], row["error"]),
        ]
        for row in rows.to_dict("records")
    ]
    return table_lines(["condition", "arm", "difference", "95 %", "p, Holm", "seeds", "seeds to show it"], lines)


def with_error(value: float, error: float, *, sign: str = "") -> str:
    """`69.4 ± 0.3`; a single seed has no error."""
    return f"{value:{sign}.1f}" + ("" if pd.isna(error) else f" ± {error:.1f}")


def needed_text(needed: int | None, error: float) -> str:
    """How many seeds; blank where one seed shows no spread, in words where no number of them is near."""
    said = "more than 10,000" if pd.isna(needed) else f"{needed}"
    return "" if math.isnan(error) else said


def draw_forest(table: pd.DataFrame, path: Path, *, reference: str) -> None:
    """A panel per metric, a line per condition and arm: the difference with its interval. Arms differ in colour and mark.

    What the bootstrap alone says is drawn thick. An arm that is far from all others stands as an arrow with its number at the
    edge, so that it does not squeeze them, and an interval that goes on beyond the edge has an arrow there.
    """
    arms = list(table["arm"].unique())
    pairs = list(table[["condition", "arm"]].drop_duplicates().itertuples(index=False, name=None))
    conditions = list(dict.fromkeys(condition for condition, _ in pairs))
    # A gap between conditions.
    heights = {pair: place + conditions.index(pair[0]) * 0.7 for place, pair in enumerate(pairs)}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.4 + 0.3 * len(pairs)), layout="constrained")
        for axes, (metric, title) in zip(figure.subplots(1, 2, sharey=True), METRICS.items(), strict=True):
            rows = table[table["metric"] == metric]
            edge = FAR * rows[["bootstrap_low", "bootstrap_high"]].abs().max(axis=1).median()
            for row in rows.to_dict("records"):
                index, difference = arms.index(row["arm"]), row["difference"]
                height, colour = heights[(row["condition"], row["arm"])], COLOURS[(index + 1) % len(COLOURS)]
                if abs(difference) > edge:
                    _draw_far(axes, difference, height, colour)
                    continue
                low, high = max(row["low"], -edge), min(row["high"], edge)
                axes.hlines(height, low, high, color=colour, linewidth=0.9)
                axes.hlines(height, row["bootstrap_low"], row["bootstrap_high"], color=colour, linewidth=2.8)
                for end, mark, beyond in ((low, "<", row["low"] < low), (high, ">", row["high"] > high)):
                    if beyond:
                        axes.plot(end, height, mark, color=colour, markersize=4)
                axes.plot(difference, height, MARKERS[(index + 1) % len(MARKERS)], color=colour, markersize=6)
            axes.axvline(0.0, color="#555555", linewidth=1, linestyle=":")
            axes.set_title(title, fontsize=10, loc="left")
            axes.set_xlabel(f"difference from {reference} (points)")
            axes.grid(visible=False, axis="y")
        names = [f"{arm}  ({condition})" if len(conditions) > 1 else arm for condition, arm in pairs]
        axes.set_yticks([heights[pair] for pair in pairs], names)
        axes.set_ylim(max(heights.values()) + 0.7, -0.7)
        figure.supxlabel(f"thin: {CONFIDENCE:.0%} interval to judge by; thick: of its bootstrap alone", fontsize=9)
        save_png(figure, path)


def _draw_far(axes: Axes, difference: float, height: float, colour: str) -> None:
    """An arrow at the left or right edge, and the number."""
    below = difference < 0
    axes.text(
        0.01 if below else 0.99,
        height,
        f"◂ {difference:+.1f}" if below else f"{difference:+.1f} ▸",
        transform=axes.get_yaxis_transform(),
        color=colour,
        horizontalalignment="left" if below else "right",
        verticalalignment="center",
    )
