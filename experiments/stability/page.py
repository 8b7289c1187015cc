"""The page of a sweep or an ablation: tables of its levels, pictures, the paper's claims that it tests, what did not finish."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from experiments.stability.figures import draw_frontier, draw_levels, draw_trajectories
from experiments.stability.gathering import FINISHED, NOT_BEGUN, REWARD_SHARE, UNFINISHED, Gathered
from experiments.stability.levels import Levels, short
from oar.analysis.arms import METRICS
from oar.analysis.claims.claims import NOT_RUN, load_claims
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import tested_table
from oar.analysis.claims.quantities import COLLAPSE_SHARE, COLLAPSE_WINDOW
from oar.analysis.reports.page import PAGE, interval_text, table_lines, write_csv, write_page
from oar.common.files import atomic_path
from oar.common.provenance import joined_provenance
from oar.evaluation.evaluate import GREEDY_METRIC, MEAN, SAMPLED_METRIC
from oar.runs.folder import full_steps
from oar.statistics.intervals import CONFIDENCE


@dataclass(frozen=True, slots=True)
class Study:
    """The words of a page. `reference`: the level that the others are held against; None: the first."""

    title: str
    question: str
    paper: str
    reference: tuple[Any, ...] | None = None


CLAIMS = "The paper's claims that these runs can test"
COMMON = ("profile", "model.name", "method.name", "gating.name", "probe.name", "learner.steps")  # shown where all agree
DIAGNOSTICS = {
    "reward": ("training reward", ".3f"),
    "entropy": ("entropy (nats)", ".3f"),
    "entropy_lowest": ("lowest entropy", ".3f"),
    "ess_ratio": ("ESS ratio", ".3f"),
    "suppressed_share": ("suppressed", ".1%"),
    "boosted_share": ("boosted", ".1%"),
}
READING = """Accuracy is the unweighted mean over benchmarks, in percent: `{sampled}` of samples, `{greedy}` greedy. Differences
are in points from {reference}, paired by training seed. Brackets: {confidence:.0%} intervals over {over}. Where problems
were drawn, an interval covers two: a bootstrap over problems and seeds, and Student's over seeds, which with two is very wide."""
CHANCE = (
    """Of {tests} such differences, {apart} have an interval without 0; about one in twenty would without any effect."""
)
DIAGNOSED = """Means over the finished runs; of a run, the mean of its last {window} steps, and the lowest mean of {window} steps
for the lowest entropy. *Suppressed*, *boosted*: shares of the reasoning tokens whose weight is below and above 1, after the
sum was restored. A run has collapsed at the first step at which the mean entropy of {window} steps falls below {share:g} of what
it was at first, or from which the mean reward of {window} steps stays, to the end, below {reward:g} of its highest before; both
bounds are assumptions of ours. Runs that did not finish count there too, as far as they went."""
OTHER_SETTING = "That is on Qwen2.5-7B; what holds or fails on another model and task says nothing of it."
KNOWN = {
    ("gating.tau", "gating.beta"): Study(
        "The stability frontier over tau and beta",
        "Where on the plane of `gating.tau` (level of the gate's threshold) and `gating.beta` (strength of the boost) does "
        "training go well, how far does credit concentrate, and does anything collapse?",
        "tau 0.3 to 0.7 is stable, too low a tau collapses the entropy, too high a one slows learning; its defaults are "
        f"tau 0.4 and beta 2 (docs/METHOD.md §5, §6, §7.3). {OTHER_SETTING}",
        (0.4, 2),
    ),
    ("gating.name",): Study(
        "Gating: both levels, one of them, none",
        "What do boosting and suppressing contribute, each on its own?",
        f"Boosting only and suppressing only are worse than both together (docs/METHOD.md §6). {OTHER_SETTING}",
        ("bilevel",),
    ),
    ("probe.name",): Study(
        "Outcome probes",
        "Which distribution should stand for the model's answer when importance is measured?",
        "`as_mean` is above `lt_logits` and `as_joint`; the default is `warmup`, `lt_logits` first and `as_mean` after it "
        f"(docs/METHOD.md §3). {OTHER_SETTING}",
        ("warmup",),
    ),
}


def study_of(keys: Sequence[str]) -> Study:
    """The study that compares these settings."""
    names = " and ".join(f"`{key}`" for key in keys)
    plain = Study(
        f"A sweep over {' and '.join(map(short, keys))}",
        f"What does {names} change?",
        "docs/METHOD.md holds nothing that the paper says of it.",
    )
    return KNOWN.get(tuple(keys), plain)


def write_stability(
    study: Study, gathered: Gathered, levels: Levels, folder: Path, *, repeat: str | None = None
) -> Path:
    """Write the page, `runs.csv`, `levels.csv`, `metrics.parquet`, pictures and `provenance.json` into `folder`.

    Where the runs can test a claim of the paper, `claims.csv` as well. `repeat`: the command that repeats all; where None, the
    multirun's own and that of the page. Returns the page.
    """
    runs = list(gathered.finished.values())
    tested = ledger(load_claims(), runs, full_steps())
    tested = tested[tested["verdict"] != NOT_RUN]
    for name, table in {"runs.csv": gathered.runs, "levels.csv": levels.table.reset_index()}.items():
        write_csv(table, folder / name)
    with atomic_path(folder / "metrics.parquet") as path:
        gathered.metrics.to_parquet(path, index=False)
    if len(tested):
        write_csv(tested, folder / "claims.csv")
    return write_page(
        folder / f"{folder.resolve().name}.md",
        PAGE,
        joined_provenance([run.provenance for run in runs]) | {"runs": len(runs)},
        title=study.title,
        question=study.question,
        paper=study.paper,
        ran=_ran(gathered),
        measured=_measured(gathered, levels, tested),
        pictures=_draw(gathered, levels, folder),
        repeat=repeat or _repeated(gathered, folder),
    )


def draw_accuracy(levels: Levels, folder: Path) -> dict[str, str]:
    """File to caption of the picture of the levels, which is drawn on the way."""
    if len(levels.keys) == 2:
        draw_frontier(levels, folder / "frontier.png")
        return {
            "frontier.png": f"Final accuracy with its interval, entropy, ESS ratio and collapse by {_names(levels)}; framed: "
            f"{levels.label(levels.reference)}, from which triangles mark the accuracies that clearly differ."
        }
    draw_levels(levels, folder / "levels.png")
    return {"levels.png": f"Accuracy by {_names(levels)}, and differences from {levels.label(levels.reference)}."}


def _draw(gathered: Gathered, levels: Levels, folder: Path) -> dict[str, str]:
    """File to caption of each picture, which is drawn on the way."""
    first = draw_accuracy(levels, folder)
    draw_trajectories(gathered, levels, folder / "trajectories.png")
    return first | {
        "trajectories.png": f"Entropy, ESS ratio and training reward, running means of {COLLAPSE_WINDOW} steps; thin lines are "
        "single runs, thick ones their mean over seeds, crosses collapses."
    }


def _names(levels: Levels) -> str:
    return " and ".join(map(short, levels.keys))


def _ran(gathered: Gathered) -> str:
    runs = list(gathered.finished.values())
    shared = []
    for key in COMMON:
        found = {str(OmegaConf.select(run.settings, key)) for run in runs}
        if len(found) == 1:
            shared.append(f"{key.removesuffix('.name')}={found.pop()}")
    counts = {state: int((gathered.runs["state"] == state).sum()) for state in (FINISHED, UNFINISHED, NOT_BEGUN)}
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    rows = runs[0].scores[runs[0].scores["metric"] == SAMPLED_METRIC]
    sets = ", ".join(f"{row.benchmark} {row.n}" for row in rows[rows["benchmark"] != MEAN].itertuples())
    return (
        f"{len(gathered.runs)} runs of `experiments.train`, {states}; "
        f"seeds {seeds}; `{' '.join(shared)}`. Evaluated on held-out problems: {sets}, so many samples each: "
        f"{', '.join(map(str, rows['k'].dropna().unique()))}."
    )


def _measured(gathered: Gathered, levels: Levels, tested: pd.DataFrame) -> str:
    parts = [
        "## Accuracy",
        accuracy_section(levels),
        "## How training went",
        DIAGNOSED.format(window=COLLAPSE_WINDOW, share=COLLAPSE_SHARE, reward=REWARD_SHARE),
        _diagnostics(levels),
    ]
    missing = gathered.runs[gathered.runs["state"] != FINISHED]
    if len(missing):
        found = missing[["run", "state", "why", "overrides"]].to_numpy().tolist()
        rows = [[f"`{run}`", state, why, f"`{made}`" if made else ""] for run, state, why, made in found]
        parts += [
            "## Runs that have not finished",
            "They are no part of the accuracies; what they logged is in `metrics.parquet`.",
            table_lines(["run", "state", "why", "settings"], rows),
        ]
    if len(tested):
        parts += [f"## {CLAIMS}", claims_section(tested)]
    return "\n\n".join(part for part in parts if part)


def accuracy_section(levels: Levels) -> str:
    """Markdown: how to read it, and accuracy and difference of every level."""
    table, reference = levels.table, levels.label(levels.reference)
    over = "; ".join(dict.fromkeys(value for metric in METRICS for value in table[f"{metric} interval over"].dropna()))
    reading = READING.format(
        sampled=SAMPLED_METRIC, greedy=GREEDY_METRIC, reference=reference, confidence=CONFIDENCE, over=over
    )
    return "\n\n".join(part for part in (reading, _chance(table), _accuracies(levels)) if part)


def claims_section(tested: pd.DataFrame) -> str:
    """Markdown: the claims that could be tested, a table of `oar.analysis.claims.ledger.ledger`."""
    return "The rules of the verdicts stand in the page of Table 1 (`make reproduce-table1`).\n\n" + tested_table(
        tested
    )


def _chance(table: pd.DataFrame) -> str:
    columns = [f"difference {metric}" for metric in METRICS if f"difference {metric} low" in table]
    tests = sum(int(table[f"{column} low"].notna().sum()) for column in columns)
    apart = sum(int(((table[f"{column} low"] > 0) | (table[f"{column} high"] < 0)).sum()) for column in columns)
    return CHANCE.format(tests=tests, apart=apart) if tests else ""


def _accuracies(levels: Levels) -> str:
    header = [*map(short, levels.keys), "finished", "seeds"]
    header += [one for metric in METRICS for one in (metric, "difference")]
    rows = []
    for level, row in levels.cells.items():
        cells = [f"{row['finished']} of {row['runs']}", row["seeds"]]
        for metric in METRICS:
            cells += [_interval(row, metric), _interval(row, f"difference {metric}", "+")]
        rows.append([*map(str, level), *cells])
    return table_lines(header, rows)


def _diagnostics(levels: Levels) -> str:
    header = [*map(short, levels.keys), *(title for title, _ in DIAGNOSTICS.values()), "collapsed"]
    rows = []
    for level, row in levels.cells.items():
        cells = ["" if pd.isna(row[name]) else f"{row[name]:{form}}" for name, (_, form) in DIAGNOSTICS.items()]
        step = "" if pd.isna(row["collapse_step"]) else f", from step {row['collapse_step']}"
        rows.append([*map(str, level), *cells, f"{row['collapsed']} of {row['begun']}{step}"])
    return table_lines(header, rows)


def _interval(row: dict[str, Any], name: str, sign: str = "") -> str:
    """`69.4 [68.2, 70.6]`; a blank where there is no value, no brackets where there is no interval."""
    if pd.isna(row.get(name)):
        return ""
    interval = interval_text(row.get(f"{name} low"), row.get(f"{name} high"), f"{sign}.1f")
    return f"{row[name]:{sign}.1f} {interval}".rstrip()


def _repeated(gathered: Gathered, folder: Path) -> str:
    """The multiruns' commands with folders below multirun/, and the one that makes the page of them."""
    lines = [
        f"python -m experiments.train -m {shlex.join(typed)} hydra.sweep.dir=multirun/{name}"
        for name, typed in gathered.sweeps.items()
        if typed
    ]
    folders = ",".join(f"multirun/{name}" for name in gathered.sweeps)
    lines += [f"python -m experiments.stability 'folders=[{folders}]' output_dir=results/{folder.resolve().name}"]
    return "\n".join(lines)
