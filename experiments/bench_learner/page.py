"""What the comparison of training steps with TRL's GRPOTrainer found: one tidy table, three numbers, a page and a picture.

A round is what experiments/bench_learner/__main__.py keeps: by side the seconds, losses, gradient norms and tokens of
each step, and the peak of what its tensors held.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from oar.analysis.reports.figures import COLOURS, MARKERS, STYLE, save_png
from oar.analysis.reports.page import GOAL_HEADER, Goal, machine, table_lines
from oar.common.files import atomic_path, write_text_atomic

OAR, OAR_RECOMPUTE, TRL, TRL_RECOMPUTE = "oar", "oar_recompute", "trl", "trl_recompute"
MIB = 2**20
SECONDS, PEAK, PADDING = "seconds", "peak_mib", "padding"
TIME_RATIO, MEMORY_RATIO, LOSS_DIFF, NORM_DIFF = "time_ratio", "memory_ratio", "loss_abs_diff", "norm_rel_diff"
COLUMNS = {
    SECONDS: ("seconds per step", ".3g"),
    TIME_RATIO: ("time / TRL's", ".2f"),
    PEAK: ("peak MiB", ",.0f"),
    MEMORY_RATIO: ("peak / TRL's", ".2f"),
    PADDING: ("padding", ".0%"),
    LOSS_DIFF: ("loss, difference", ".0e"),
    NORM_DIFF: ("gradient norm, relative", ".0e"),
}
GOALS = (
    Goal("time_ratio_vs_trl", "seconds per step / TRL's", "", 0.8),
    Goal("memory_ratio_vs_trl", "peak memory / TRL's", "", 0.7),
    Goal("loss_abs_diff", "largest difference of a step's loss, all cases", "", 1e-5, form=".1e"),
)
INTRODUCTION = """# A training step against TRL's GRPOTrainer

**Question.** What does a step of the learner cost in seconds and memory beside TRL {trl}, the widespread implementation, where
both compute the same loss on the same model, batch and completions?

**Where.** {machine}; {threads} torch thread(s), {dtype}, random weights and tokens.

**How.** Each side runs in a process of its own, the sides take turns, {rounds} rounds of {steps} steps after a short one; values
are medians, in brackets quartiles over steps, ratios are of medians. A step is forward and backward of every micro-batch
(one completion in each, on both sides), clipping and the optimizer's step: TRL's own drawing, grading and
collating are taken out of its time. TRL is given the completions through its `rollout_func`; its objective is set to this one's
(`loss_type=grpo`, `beta=0`, the same clipping, AdamW's numbers and learning rate), all else is its default but for float32 in
place of bfloat16. Old logprobs lie {old_noise:g} nats (standard deviation) about those of a uniform policy: the ratio is not 1,
some tokens are clipped and the loss differs from 0.

*Peak*: the most bytes that tensors held in any step, optimizer state and gradients included, above what they held with the
model loaded, as torch's allocator counts them on a GPU: what is set aside counts, written or not (TRL's loss has buffers for
8,192 words, however few the model knows). *Padding*: tokens forwarded above those of prompts and completions. *Loss,
difference*: the largest of any step against TRL; gradient norms likewise, relative. `{recompute}`: each layer is run again in
the backward pass instead of keeping its activations (`learner.activation_checkpointing`; TRL's default).
"""


class Where(NamedTuple):
    """A case: a size, a completion length in tokens, and a batch by name."""

    size: str
    length: int
    batch: str


def case_rows(
    where: Where, tokens: int, rounds: Sequence[Mapping[str, Any]], memory: Mapping[str, Any]
) -> Iterator[tuple[Any, ...]]:
    """Of one case: rounds by side; memory: a round of processes whose peaks count; tokens: of its prompts and completions."""
    found: dict[str, dict[str, float]] = {side: {} for side in rounds[0]}
    for side, metrics in found.items():
        seconds = [value for one in rounds for value in one[side]["seconds"]]
        for name, share in ((SECONDS, 0.5), (f"{SECONDS}_q1", 0.25), (f"{SECONDS}_q3", 0.75)):
            metrics[name] = float(np.quantile(seconds, share))
        metrics[PEAK] = memory[side]["peak"] / MIB
        metrics[PADDING] = rounds[0][side]["tokens"][0] / tokens - 1
    for side, metrics in found.items():
        metrics[TIME_RATIO] = metrics[SECONDS] / found[TRL][SECONDS]
        metrics[MEMORY_RATIO] = metrics[PEAK] / found[TRL][PEAK]
        pairs = [(one[side], one[TRL]) for one in [*rounds, memory]]
        metrics[LOSS_DIFF] = max(float(np.abs(np.subtract(a["losses"], b["losses"])).max()) for a, b in pairs)
        norms = [(np.asarray(a["gradient_norms"]), np.asarray(b["gradient_norms"])) for a, b in pairs]
        metrics[NORM_DIFF] = max(float((np.abs(a - b) / b).max()) for a, b in norms)
        yield from ((*where, side, name, value) for name, value in metrics.items())


def tidy(rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """The one table that everything else is read off."""
    return pd.DataFrame(list(rows), columns=[*Where._fields, "side", "metric", "value"])


def summary(table: pd.DataFrame, headline: Where) -> dict[str, float]:
    """The three numbers: ratios of the headline's case, the loss of all cases."""
    ours = table[table["side"] == OAR]
    here = (ours["size"] == headline.size) & (ours["length"] == headline.length) & (ours["batch"] == headline.batch)
    value = ours[here].set_index("metric")["value"]
    return {
        "time_ratio_vs_trl": float(value[TIME_RATIO]),
        "memory_ratio_vs_trl": float(value[MEMORY_RATIO]),
        "loss_abs_diff": float(ours.loc[ours["metric"] == LOSS_DIFF, "value"].max()),
    }


def write_bench_learner(
    table: pd.DataFrame, folder: Path, *, headline: Where, run: Mapping[str, Any], provenance: Mapping[str, Any]
) -> dict[str, float]:
    """Write bench.csv, bench.md, bench.png and provenance.json into `folder`, each atomically; returns `summary`.

    run: what `INTRODUCTION` names, `sizes` and `batches` in words; provenance: `collect_provenance`.
    """
    numbers = summary(table, headline)
    with atomic_path(folder / "bench.csv") as path:
        table.to_csv(path, index=False)
    write_text_atomic(folder / "bench.md", markdown(table, numbers, headline, run, provenance))
    draw(table, folder / "bench.png")
    record = {**provenance, "run": dict(run), "headline": headline._asdict(), "summary": numbers}
    write_text_atomic(folder / "provenance.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
    return numbers


def markdown(
    table: pd.DataFrame,
    numbers: Mapping[str, float],
    headline: Where,
    run: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> str:
    """The text of bench.md."""
    recompute = [side for side in (OAR_RECOMPUTE, TRL_RECOMPUTE) if side in set(table["side"])]
    parts = [
        INTRODUCTION.format(**run, **machine(provenance), recompute="` and `".join(recompute)),
        "## Goals",
        f"Of `{headline.size}`, {headline.length:,} tokens, batch `{headline.batch}`, neither side running layers again.",
        table_lines(GOAL_HEADER, [goal.row(numbers[goal.key]) for goal in GOALS]),
        "## Every case",
        f"{run['sizes']}. {run['batches']}.",
    ]
    for where, rows in table.groupby(list(Where._fields), sort=False):
        size, length, batch = where
        parts += [f"### {size}, {length:,} tokens, {batch}", _side_table(rows)]
    parts += [
        "![seconds and memory by length](bench.png)",
        "## How to repeat it",
        f"`{provenance['command']}`, or `make bench-learner`; every value with its quartiles stands in `bench.csv`, what decides "
        "them in `provenance.json`.",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def draw(table: pd.DataFrame, path: Path) -> None:
    """Seconds above, peaks below, by completion length; a column for each size and batch."""
    columns = list(dict.fromkeys(zip(table["size"], table["batch"], strict=True)))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 3.2 * len(columns), 6.4), layout="constrained")
        panels = figure.subplots(2, len(columns), squeeze=False, sharex="col")
        for (size, batch), axes in zip(columns, panels.T, strict=True):
            axes[0].set_title(f"{size}, {batch}", loc="left", fontsize=10)
            axes[1].set_xlabel("completion length (tokens)")
            for panel, metric in zip(axes, (SECONDS, PEAK), strict=True):
                rows = table[(table["size"] == size) & (table["batch"] == batch) & (table["metric"] == metric)]
                for index, side in enumerate(table["side"].unique()):
                    line = rows[rows["side"] == side].sort_values("length")
                    style = {"color": COLOURS[index + 1], "marker": MARKERS[index]}
                    panel.plot(line["length"], line["value"], label=side, **style)
                panel.set_ylim(bottom=0)
        panels[0, 0].set_ylabel("seconds per step")
        panels[1, 0].set_ylabel("peak memory (MiB)")
        panels[0, -1].legend(frameon=False, fontsize=8)
        save_png(figure, path)


def _side_table(rows: pd.DataFrame) -> str:
    """A line per side, a column per metric; a blank where there is no value."""
    value = dict(zip(zip(rows["side"], rows["metric"], strict=True), rows["value"], strict=True))

    def cell(side: str, metric: str, form: str) -> str:
        if (side, metric) not in value:
            return ""
        text = format(value[side, metric], form)
        if metric == SECONDS:
            text += f" [{value[side, SECONDS + '_q1']:{form}}, {value[side, SECONDS + '_q3']:{form}}]"
        return text

    lines = [
        [f"`{side}`", *(cell(side, metric, form) for metric, (_, form) in COLUMNS.items())]
        for side in rows["side"].unique()
    ]
    return table_lines(["", *(title for title, _ in COLUMNS.values())], lines)
