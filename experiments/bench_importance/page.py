"""The files of the benchmark of importance: the table, goals beside what was measured, and the curve a user picks a point on."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bench_importance.costs import (
    CORRELATION,
    EMBEDDED,
    EXACT,
    GRPO,
    OAR_G,
    OAR_GN,
    ONE_BACKWARD,
    PLAIN,
    STEPS,
    SYNTHETIC,
    WINDOW,
    summary,
)
from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import CLOSED, GOAL_HEADER, OPENED, Goal, conclusion_of, machine, table_lines
from oar.analysis.signals.recall import OVERLAP, SPEARMAN
from oar.common.files import atomic_path, write_text_atomic

GOALS = (
    Goal("oar_g_step_ratio", "whole training step with OAR-G / GRPO", "1.4 (the paper's own measurement)", 1.15),
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
    Goal("peak_extra_memory_ratio", "peak extra memory of exact OAR-P / the update's own, worst case", "", 1.0),
)

INTRODUCTION = """# What importance costs, and how true it is

**Question.** What does each way to score tokens add to a GRPO step, how does that grow with length and size, and how close does
it come to exact OAR-P? The user picks a point on the curve.

**What the paper says.** OAR-P costs 4.2 GRPO steps, OAR-G 1.4 (docs/METHOD.md §6), on other models and other hardware.

**What was run.** {machine}; {threads} torch thread(s), {dtype}. All methods of a table were measured in one run and took
turns; values are medians, in brackets quartiles over rounds (of Spearman: the 95 % bootstrap interval over problems). Ratios
are taken within a round. {kept}
"""
STEPS_TEXT = """`Learner.training_step` with the real engine, probe `{probe}`: every method takes step i of {step_rounds} in
turn, from the weights of the base model and so on the same completions; seconds by stage, and the ratio of the whole step to
GRPO's, with and without generation."""
EMBEDDED_TEXT = """One batch of the embedded profile, drawn by the engine from the taught base model, {completions}; probe
`{probe}`. Fidelity is against exact OAR-P (`oar_p`), mean over completions that have an advantage: rank correlation of the
importance, share of the top fifth found, Pearson's correlation of the gated weights. *Update*: the learner's forward, credit,
loss and backward of the batch, without optimizer step and generation. *Tokens*: rows x width of every call of the
decoder, the update's own forward and padding included; in the last layer most of them are only half computed."""
SYNTHETIC_TEXT = """Random weights and tokens: for cost alone, fidelity there means little. Prompt {prompt_tokens} tokens,
marker 1, answer {answer_tokens}, EOS 1, the rest is reasoning. {sizes}. *Credit*: seconds of the estimator and the gate for one
completion. *Peak of the update*: the most bytes that tensors held above the model's own, gradients included, no optimizer
state, as torch's allocator counts them on a GPU; *of credit*: what the estimator adds at most to what is held when it is
called; the ratio is to the update of GRPO. `plain` is the naive OAR-P of the tests: whole masked copies, as many tokens in a
forward as the others."""
STEP_COLUMNS = {
    "generation_s": ("generation s", ".2f"),
    "scoring_s": ("scoring s", ".2f"),
    "importance_s": ("importance s", ".2f"),
    "update_s": ("update s", ".2f"),
    "sync_s": ("sync s", ".2f"),
    "total_s": ("step s", ".2f"),
    "step_ratio": ("step / GRPO", ".2f"),
    "learner_ratio": ("without generation", ".2f"),
}
EMBEDDED_COLUMNS = {
    SPEARMAN: ("Spearman", ".2f"),
    OVERLAP: ("top fifth", ".2f"),
    CORRELATION: ("weights", ".2f"),
    "update_s": ("update s", ".2f"),
    "update_ratio": ("update / GRPO", ".2f"),
    "tokens": ("tokens", ",.0f"),
}
SYNTHETIC_COLUMNS = {
    "rounds": ("rounds", ".0f"),
    "update_s": ("update s", ".3g"),
    "update_ratio": ("update / GRPO", ".2f"),
    "credit_s_per_completion": ("credit s", ".3g"),
    "over_plain": ("credit / plain", ".2f"),
    "tokens": ("tokens", ",.0f"),
    "update_peak_mib": ("peak of the update MiB", ".1f"),
    "credit_peak_mib": ("of credit MiB", ".1f"),
    "memory_ratio": ("of credit / GRPO's update", ".2f"),
    SPEARMAN: ("Spearman", ".2f"),
}
SPREAD = (SPEARMAN, "update_ratio", "step_ratio", "learner_ratio")  # shown with their interval or quartiles
PLOTTED = (
    PLAIN,
    EXACT,
    OAR_G,
    OAR_GN,
    WINDOW,
    "routes4",
    "budget16",
)  # lines by length; all of them would hide each other
FAMILIES: dict[str, Callable[[str], bool]] = {
    "one backward": lambda method: method in ONE_BACKWARD,
    "exact": lambda method: method == EXACT,
    "window": lambda method: method.startswith("window") and "budget" not in method,
    "routes": lambda method: method.startswith("routes"),
    "budget": lambda method: method.startswith("budget"),
    "window, budget": lambda method: method.startswith("window") and "budget" in method,
    "neither": lambda method: method in (GRPO, "entropy"),
}
CURVES = ("window", "routes", "budget")  # families of one parameter


def write_bench(
    table: pd.DataFrame,
    folder: Path,
    *,
    chosen: str | None,
    skipped: Mapping[str, Mapping[str, float]],
    run: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> dict[str, float | None]:
    """Write bench.csv, bench.md, bench.png and provenance.json into `folder`, each atomically; returns `summary`.

    chosen: `cheapest_faithful`; skipped: by "size, length" the methods that were left out and the seconds they were thought
    to take; run: what `INTRODUCTION` names; provenance: `collect_provenance`.
    """
    numbers = summary(table, chosen)
    with atomic_path(folder / "bench.csv") as path:
        table.to_csv(path, index=False)
    text = markdown(table, numbers, chosen, skipped, run, provenance, conclusion_of(folder / "bench.md"))
    write_text_atomic(folder / "bench.md", text)
    draw_bench(table, run["faithful"], folder / "bench.png")
    record = {**provenance, "run": dict(run), "chosen": chosen, "skipped": skipped, "summary": numbers}
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
    return numbers


def markdown(
    table: pd.DataFrame,
    numbers: Mapping[str, float | None],
    chosen: str | None,
    skipped: Mapping[str, Mapping[str, float]],
    run: Mapping[str, Any],
    provenance: Mapping[str, Any],
    follows: str,
) -> str:
    """The text of bench.md; follows: what people concluded."""
    judged = f"`{chosen}`" if chosen else "none reached the bound (or the embedded task was not measured)"
    parts = [
        INTRODUCTION.format(**run, **machine(provenance)),
        "## Goals",
        table_lines(GOAL_HEADER, [g.row(numbers[g.key]) for g in GOALS]),
        f"The cheapest windowed or budgeted variant with Spearman >= {run['faithful']:g}, by the seconds of an update on the "
        f"embedded task: {judged}. {_growth_sentence(table)} {_memory_sentence(table)}",
    ]
    steps = table[table["part"] == STEPS]
    if len(steps):
        parts += [
            "## Whole training steps, embedded default",
            STEPS_TEXT.format(**run),
            _method_table(steps, STEP_COLUMNS),
        ]
    embedded = table[table["part"] == EMBEDDED]
    if len(embedded):
        parts += ["## Fidelity and cost on the embedded task", EMBEDDED_TEXT.format(**run)]
        parts += [_method_table(embedded, EMBEDDED_COLUMNS)]
    parts += ["![cost against fidelity, and cost by length](bench.png)"]
    synthetic = table[table["part"] == SYNTHETIC]
    if len(synthetic):
        parts += ["## One update by size and length, random weights", SYNTHETIC_TEXT.format(**run)]
    for (size, length), rows in synthetic.groupby(["size", "length"], sort=False):
        left_out = skipped.get(f"{size}, {length:g}", {})
        why = "; ".join(f"`{method}` about {seconds:.0f} s" for method, seconds in left_out.items())
        parts += [f"### {size}, length {length:g}", _method_table(rows, SYNTHETIC_COLUMNS, [*left_out])]
        parts += [f"Left out, an update was thought to take: {why}."] if why else []
    parts += [
        f"## What follows\n\n{OPENED}\n{follows}\n{CLOSED}",
        "## How to repeat it",
        f"`{provenance['command']}`, or `make bench-importance`; every value with its quartiles stands in `bench.csv`, what "
        "decides them in `provenance.json`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def draw_bench(table: pd.DataFrame, faithful: float, path: Path) -> None:
    """Cost against fidelity on the embedded task; then, for each size, the seconds of a completion's credit by its length."""
    synthetic = table[(table["part"] == SYNTHETIC) & (table["metric"] == "credit_s_per_completion")]
    sizes = list(synthetic["size"].unique())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.5 + 4.5 * len(sizes), 4.8), layout="constrained")
        panels = figure.subplots(1, 1 + len(sizes), squeeze=False, width_ratios=[1.3] + [1] * len(sizes))[0]
        _draw_choice(panels[0], table[table["part"] == EMBEDDED], faithful)
        for axes, size in zip(panels[1:], sizes, strict=True):
            for index, method in enumerate(m for m in PLOTTED if m in set(synthetic["method"])):
                rows = synthetic[(synthetic["size"] == size) & (synthetic["method"] == method)].sort_values("length")
                style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
                axes.loglog(rows["length"], rows["value"], label=method, **style)
            lengths = sorted(synthetic["length"].unique())
            axes.set_xticks(lengths, [f"{length:g}" for length in lengths], minor=False)
            axes.set_xticks([], minor=True)
            axes.set_title(size, loc="left", fontsize=10)
            axes.set_xlabel("completion length (tokens)")
        if sizes:
            panels[1].set_ylabel("seconds of credit per completion")
            panels[-1].legend(frameon=False, fontsize=8)
        save_png(figure, path)


def _draw_choice(axes: Axes, rows: pd.DataFrame, faithful: float) -> None:
    axes.set_title("embedded task: pick a point", loc="left", fontsize=10)
    axes.set_xlabel("seconds of the update with credit / GRPO's")
    axes.set_ylabel("rank correlation with exact OAR-P")
    if not len(rows):
        return
    wide = rows.pivot(index="method", columns="metric", values="value").sort_values("update_ratio")
    for index, (name, family) in enumerate(FAMILIES.items()):
        some = wide[[family(str(method)) for method in wide.index]]
        if len(some):
            style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            style |= {"linestyle": "--" if name in CURVES else "", "linewidth": 0.8, "label": name}
            errors = [some[SPEARMAN] - some[f"{SPEARMAN}_low"], some[f"{SPEARMAN}_high"] - some[SPEARMAN]]
            axes.errorbar(some["update_ratio"], some[SPEARMAN], yerr=errors, **style)
    for method, ratio, agreement in zip(wide.index, wide["update_ratio"], wide[SPEARMAN], strict=True):
        said = ", ".join(re.findall(r"\d+", str(method))) or str(method)  # the legend names what the numbers are
        axes.annotate(said, (ratio, agreement), xytext=(4, -10), textcoords="offset points", fontsize=8)
    axes.axhline(faithful, color="#555555", linewidth=0.8, linestyle=":")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _method_table(rows: pd.DataFrame, columns: Mapping[str, tuple[str, str]], left_out: Sequence[str] = ()) -> str:
    """A line per method, a column per metric that was measured; a blank where there is no value."""
    value = dict(zip(zip(rows["method"], rows["metric"], strict=True), rows["value"], strict=True))
    shown = {metric: how for metric, how in columns.items() if metric in set(rows["metric"])}

    def cell(method: str, metric: str, form: str) -> str:
        if (method, metric) not in value:
            return ""
        text = format(value[method, metric], form)
        for low, high in (("_low", "_high"), ("_q1", "_q3")) if metric in SPREAD else ():
            if (method, metric + low) in value:
                text += f" [{value[method, metric + low]:{form}}, {value[method, metric + high]:{form}}]"
        return text

    lines = [
        [f"`{method}`", *(cell(method, metric, form) for metric, (_, form) in shown.items())]
        for method in [*rows["method"].unique(), *left_out]
    ]
    return table_lines(["", *(title for title, _ in shown.values())], lines)


def _growth_sentence(table: pd.DataFrame) -> str:
    """How the cost of window 8 grows with each length, for each size."""
    rows = table[
        (table["part"] == SYNTHETIC) & (table["method"] == WINDOW) & (table["metric"] == "credit_s_per_completion")
    ]
    told = []
    for size, some in rows.groupby("size", sort=False):
        line = some.sort_values("length")
        steps = zip(line["length"], line["length"][1:], line["value"], line["value"][1:], strict=False)
        told += [f"{size} {a:g} to {b:g}: {y / x:.2f}x" for a, b, x, y in steps]
    return f"Growth of the seconds of `{WINDOW}` a completion: {', '.join(told)}." if told else ""


def _memory_sentence(table: pd.DataFrame) -> str:
    """What the ratio of peaks is made of, for each size and length."""
    value = table[table["part"] == SYNTHETIC].set_index(["size", "length", "method", "metric"])["value"]
    told = []
    for size, length, method, metric in value.index:
        if (method, metric) == (EXACT, "credit_peak_mib"):
            ours, update = value[size, length, EXACT, metric], value[size, length, GRPO, "update_peak_mib"]
            told.append(f"{size} {length:g}: {ours:.1f} / {update:.1f}")
    return f"Peak extra memory of exact OAR-P / of GRPO's update, MiB: {', '.join(told)}." if told else ""
