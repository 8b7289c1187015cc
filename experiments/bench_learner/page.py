"""What the comparison of training steps with TRL's GRPOTrainer found: one tidy table, three numbers, a page and a picture.

A round is what experiments/bench_learner/__main__.py keeps: by side the seconds, losses, gradient norms and tokens of
each step, and the peak of what its tensors held.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.shared.metric_table import metric_table
from oar.analysis.reports.figures import draw_dots
from oar.analysis.reports.methods import numbered
from oar.analysis.reports.page import GOAL_HEADER, Goal, machine, write_csv, write_page

TEMPLATE = Path(__file__).with_name("page.md.j2")
NAME = "bench_learner"

OAR, OAR_RECOMPUTE, TRL, TRL_RECOMPUTE = "oar", "oar_recompute", "trl", "trl_recompute"
MIB = 2**20
SECONDS, PEAK, PADDING = "seconds", "peak_mib", "padding"
TIME_RATIO, MEMORY_RATIO, LOSS_DIFF, NORM_DIFF = "time_ratio", "memory_ratio", "loss_abs_diff", "norm_rel_diff"
RATIOS = {"time": TIME_RATIO, "memory": MEMORY_RATIO}
GROUPED = "grouped_"  # a batch that is one group in one micro-batch
GOALS = (
    Goal("time_ratio_vs_trl", "seconds per step / TRL's", "", 0.8),
    Goal("memory_ratio_vs_trl", "peak memory / TRL's", "", 0.7),
    Goal("grouped_256_256_time", "seconds per step / TRL's, group of 256 + 256 tokens", "", 0.45),
    Goal("grouped_256_256_memory", "peak memory / TRL's, group of 256 + 256 tokens", "", 0.5),
    Goal("grouped_1024_256_time", "seconds per step / TRL's, group of 1,024 + 256 tokens", "", 0.25),
    Goal("grouped_1024_256_memory", "peak memory / TRL's, group of 1,024 + 256 tokens", "", 0.35),
    Goal("embedded_2048_time", "seconds per step / TRL's, size `embedded`", "", 0.8),
    Goal("loss_abs_diff", "largest difference of a step's loss, all cases", "", 1e-5, form=".1e"),
)


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
    """Ratios of the headline's case; of its size's other batches of one length (`BATCH_time`), and of the same case of other
    sizes (`SIZE_LENGTH_time`); the largest difference of a loss in all cases.
    """
    ours = table[table["side"] == OAR].set_index([*Where._fields, "metric"])["value"]

    def ratios(where: Where, prefix: str, suffix: str = "") -> dict[str, float]:
        return {f"{prefix}{name}{suffix}": float(ours[(*where, key)]) for name, key in RATIOS.items()}

    found = ratios(headline, "", "_ratio_vs_trl")
    for where in dict.fromkeys(Where(*key[:3]) for key in ours.index):
        if where.size == headline.size and where.batch.startswith(GROUPED):
            found |= ratios(where, f"{where.batch}_")
        elif where.size != headline.size and where[1:] == headline[1:]:
            found |= ratios(where, f"{where.size}_{where.length}_")
    return found | {"loss_abs_diff": float(ours.xs(LOSS_DIFF, level="metric").max())}


def write_bench_learner(
    table: pd.DataFrame, folder: Path, *, headline: Where, run: Mapping[str, Any], provenance: Mapping[str, Any]
) -> dict[str, float]:
    """Write the table, the page, its picture and provenance.json into `folder`, each atomically; returns `summary`.

    run: what the template names, `sizes` and `batches` in words; provenance: `collect_provenance`.
    """
    numbers = summary(table, headline)
    write_csv(table, folder / f"{NAME}.csv")
    draw(table, folder / f"{NAME}.png")
    write_page(
        folder / f"{NAME}.md",
        TEMPLATE,
        {**provenance, "run": dict(run), "headline": headline._asdict(), "summary": numbers},
        **machine(provenance),
        cases=list(table.groupby(list(Where._fields), sort=False)),
        metrics=partial(metric_table, by="side", spread=(SECONDS,)),
        goal_header=GOAL_HEADER,
        goals=[goal.row(numbers.get(goal.key)) for goal in GOALS],
        recompute=[side for side in (OAR_RECOMPUTE, TRL_RECOMPUTE) if side in set(table["side"])],
        headline=headline,
        run=run,
    )
    return numbers


def draw(table: pd.DataFrame, path: Path) -> None:
    """Seconds and peak memory of every case beside TRL's: a line for each case, a panel for each of RATIOS."""
    rows = table[table["metric"].isin(RATIOS.values()) & (table["side"] != TRL)]
    told = [
        f"{size}, group of {batch.removeprefix(GROUPED).replace('_', ' + ')}"
        if batch.startswith(GROUPED)
        else f"{size}, {length:,}, {batch}"
        for size, length, batch in rows[[*Where._fields]].to_numpy()
    ]
    rows = rows.assign(line=told, series=rows["side"], low=rows["value"], high=rows["value"])
    titles = {"seconds of a step / TRL's": TIME_RATIO, "peak memory / TRL's": MEMORY_RATIO}
    grid = {title: rows[rows["metric"] == metric] for title, metric in titles.items()}
    sides = numbered([side for side in table["side"].unique() if side != TRL])
    draw_dots(grid, path, looks=sides, columns=2, beside=dict.fromkeys(grid, 1.0), least=0.0)
