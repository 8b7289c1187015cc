"""The page of the benchmark of importance: goals beside what was measured, and the curve a user picks a point on."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from experiments.bench_importance.costs import (
    EMBEDDED,
    EXACT,
    GRPO,
    METHODS,
    OAR_G,
    OAR_GN,
    PLAIN,
    SYNTHETIC,
    WINDOW,
    summary,
)
from experiments.shared.metric_table import metric_table
from oar.analysis.reports.figures import QUIET, draw_dots, legend_below, picture, series_of, style
from oar.analysis.reports.methods import Look, family, look, looks_of
from oar.analysis.reports.page import GOAL_HEADER, Goal, machine, write_csv, write_page
from oar.analysis.signals.recall import SPEARMAN

TEMPLATE = Path(__file__).with_name("page.md.j2")
NAME = "bench_importance"
GOALS = (  # of the embedded default
    Goal("oar_g_step_ratio", "whole training step with OAR-G / GRPO", "1.4 (the paper's own measurement)", 1.15),
    Goal("oar_gn_step_ratio", "with the squared gradient norm / GRPO", "", 1.1),
    Goal("oar_p_exact_step_ratio", "whole training step with exact OAR-P / GRPO", "4.2 (the paper's)", 2.0),
    Goal("oar_p_window_step_ratio", "the same with the cheapest faithful window, routes or budget / GRPO", "", 1.4),
    Goal("oar_p_window_spearman", "its rank correlation with exact OAR-P", "", 0.9, at_least=True),
    Goal("window_growth_256_1024", "growth of the cost of window 8 from length 256 to 1024", "16 (quadratic)", 4.5),
    Goal(
        "best_one_backward_spearman",
        "rank correlation with exact OAR-P of the best signal that costs one backward",
        "0.50 (OAR-G in docs/METHOD.md §9)",
        0.8,
        at_least=True,
    ),
    Goal("exact_over_plain_256", "exact prefix-shared / plain OAR-P, length 256", "", 0.45),
    Goal("exact_token_over_plain_256", "the same for each recomputed token", "", 1.05),
    Goal("peak_extra_memory_ratio", "peak extra memory of exact OAR-P / the update's own, worst case", "", 0.8),
)
SPREAD = (SPEARMAN, "update_ratio", "step_ratio", "learner_ratio")  # shown with their interval or quartiles
BY_LENGTH = [PLAIN, EXACT, OAR_G, OAR_GN, WINDOW, "routes4", "budget16"]  # all lines would hide each other
NUMBERS = {"OAR-P routes": ((0, 7), "center"), "OAR-P window + budget": ((4, -15), "right")}  # where they stand


def write_bench(
    table: pd.DataFrame,
    folder: Path,
    *,
    chosen: str | None,
    skipped: Mapping[str, Mapping[str, float]],
    run: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> dict[str, float | None]:
    """Write the table, the page, its picture and provenance.json into `folder`, each atomically; returns `summary`.

    chosen: `cheapest_faithful`; skipped: by "size, length" the methods that were left out and the seconds they were thought
    to take; run: what the template names; provenance: `collect_provenance`.
    """
    numbers = summary(table, chosen)
    write_csv(table, folder / f"{NAME}.csv")
    draw_bench(table, folder / f"{NAME}.png", faithful=run["faithful"])
    write_page(
        folder / f"{NAME}.md",
        TEMPLATE,
        {**provenance, "run": dict(run), "chosen": chosen, "skipped": skipped, "summary": numbers},
        **machine(provenance),
        parts=dict(list(table.groupby("part"))),
        metrics=partial(metric_table, by="method", spread=SPREAD),
        goal_header=GOAL_HEADER,
        goals=[goal.row(numbers[goal.key]) for goal in GOALS if run["profile"] == EMBEDDED],
        growth=list(growth(table)),
        memory=list(memory(table)),
        chosen=chosen,
        skipped=skipped,
        run=run,
    )
    return numbers


def growth(table: pd.DataFrame) -> Iterator[str]:
    """How the cost of window 8 grows with each length, for each size."""
    rows = table[(table["part"] == SYNTHETIC) & (table["method"] == WINDOW)]
    for size, some in rows[rows["metric"] == "credit_s_per_completion"].groupby("size", sort=False):
        lengths, seconds = some.sort_values("length")[["length", "value"]].T.to_numpy()
        for a, b, x, y in zip(lengths, lengths[1:], seconds, seconds[1:], strict=False):
            yield f"{size} {a:g} to {b:g}: {y / x:.2f}x"


def memory(table: pd.DataFrame) -> Iterator[str]:
    """What the ratio of peaks is made of, for each size and length."""
    value = table[table["part"] == SYNTHETIC].set_index(["size", "length", "method", "metric"])["value"]
    for size, length, method, metric in value.index:
        if (method, metric) == (EXACT, "credit_peak_mib"):
            update = value[size, length, GRPO, "update_peak_mib"]
            yield f"{size} {length:g}: {value[size, length, EXACT, metric]:.1f} / {update:.1f}"


def draw_bench(table: pd.DataFrame, path: Path, *, faithful: float) -> None:
    """Cost against fidelity on the embedded task; below, for each size, the seconds of a completion's credit by its length.

    Of a benchmark of whole steps alone: what these take beside GRPO's.
    """
    if set(table["part"]) == {METHODS}:
        _draw_steps(table, path)
        return
    synthetic = table[(table["part"] == SYNTHETIC) & (table["metric"] == "credit_s_per_completion")]
    sizes, shown = list(synthetic["size"].unique()), looks_of(BY_LENGTH)
    with picture(path, 8.6 if sizes else 4.6) as figure:
        choice, *below = figure.subfigures(
            1 + bool(sizes), 1, height_ratios=[1.1, 1][: 1 + bool(sizes)], squeeze=False
        ).flat
        _draw_choice(choice.subplots(), table[table["part"] == EMBEDDED], faithful)
        for row in below:
            grid = row.subplots(1, len(sizes), squeeze=False)[0]
            for axes, size in zip(grid, sizes, strict=True):
                of_size = synthetic[synthetic["size"] == size].sort_values("length")
                for method, one in shown.items():
                    line = of_size[of_size["method"] == method]
                    axes.loglog(line["length"], line["value"], label=one.label, **style(one))
                lengths = sorted(synthetic["length"].unique())
                axes.set_xticks(lengths, [f"{length:g}" for length in lengths], minor=False)
                axes.set_xticks([], minor=True)
                axes.yaxis.set_major_formatter("{x:g}")
                axes.set_title(f"made-up model: {size}")
                axes.set_xlabel("completion length (tokens)")
            grid[0].set_ylabel("seconds of credit per completion")
            legend_below(row, series_of(grid, shown))


def _draw_steps(table: pd.DataFrame, path: Path) -> None:
    wide = table.pivot(index="method", columns="metric", values="value")
    wide = wide.loc[[method for method in table["method"].unique() if method != GRPO]]
    panels = {
        title: pd.DataFrame(
            {
                "line": [look(method).label for method in wide.index],
                "series": wide.index,
                "value": wide[metric],
                "low": wide.get(f"{metric}_q1", wide[metric]),
                "high": wide.get(f"{metric}_q3", wide[metric]),
            }
        )
        for title, metric in (
            ("whole step / GRPO's", "step_ratio"),
            ("without generation", "learner_ratio"),
            ("more memory / GRPO's peak", "peak_extra_memory_ratio"),
        )
    }
    beside = dict.fromkeys(list(panels)[:2], 1.0)
    draw_dots(
        panels,
        path,
        looks=looks_of(list(wide.index)),
        beside=beside,
        least=0.0,
        note="medians and quartiles over rounds",
    )


def _draw_choice(axes: Axes, rows: pd.DataFrame, faithful: float) -> None:
    axes.set_title("embedded task: pick a point; a number is the window, the routes or the budget")
    axes.set_xlabel("seconds of the update with credit / GRPO's")
    axes.set_ylabel("rank correlation with exact OAR-P")
    if not len(rows):
        return
    wide = rows.pivot(index="method", columns="metric", values="value").sort_values("update_ratio")
    families: dict[Look, list[str]] = {}
    for method in wide.index:
        families.setdefault(family(str(method)), []).append(method)
    for one, methods in families.items():
        some = wide.loc[methods]
        errors = [some[SPEARMAN] - some[f"{SPEARMAN}_low"], some[f"{SPEARMAN}_high"] - some[SPEARMAN]]
        axes.errorbar(some["update_ratio"], some[SPEARMAN], yerr=errors, label=one.label, linewidth=0.9, **style(one))
        for method, ratio, agreement in zip(methods, some["update_ratio"], some[SPEARMAN], strict=True):
            place, side = NUMBERS.get(one.label, ((5, -14), "left"))  # lines run close together
            numbers = ", ".join(re.findall(r"\d+", look(method).label))
            axes.annotate(numbers, (ratio, agreement), place, textcoords="offset points", ha=side, color=one.colour)
    axes.axhline(faithful, color=QUIET, linewidth=0.8, linestyle=":")
    axes.legend(loc="lower right", ncols=2)
