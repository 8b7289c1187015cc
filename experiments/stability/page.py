"""The page of a sweep or an ablation: tables of its levels, pictures, the paper's claims that it tests, what did not finish."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from experiments.stability.figures import draw_frontier, draw_levels, draw_trajectories
from experiments.stability.gathering import REWARD_SHARE, STATES, Gathered
from experiments.stability.levels import Level, Levels, short
from oar.analysis.arms import METRICS
from oar.analysis.claims.claims import NOT_RUN, load_claims
from oar.analysis.claims.ledger import ledger
from oar.analysis.claims.page import read_ledger, tested_table
from oar.analysis.reports.page import interval_text, records, write_csv, write_page
from oar.common.files import atomic_path
from oar.common.provenance import joined_provenance
from oar.evaluation.evaluate import MEAN, SAMPLED_METRIC
from oar.runs.collapse import COLLAPSE_SHARE, COLLAPSE_WINDOW
from oar.runs.folder import full_steps
from oar.statistics.intervals import CONFIDENCE

HERE = Path(__file__).parent
# The sweeps that the paper speaks of: the settings that vary, to the template with the words and the level that the others are
# held against.
GENERAL = "page.md.j2", None
KNOWN: dict[tuple[str, ...], tuple[str, Level | None]] = {
    ("gating.tau", "gating.beta"): ("sweep_gating.md.j2", (0.4, 2)),
    ("gating.name",): ("ablation_gating.md.j2", ("bilevel",)),
    ("probe.name",): ("ablation_probe.md.j2", ("warmup",)),
}
COMMON = ("profile", "model.name", "method.name", "gating.name", "probe.name", "learner.steps")  # shown where all agree
DIAGNOSTICS = {
    "reward": ".3f",
    "entropy": ".3f",
    "entropy_lowest": ".3f",
    "ess_ratio": ".3f",
    "suppressed_share": ".1%",
    "boosted_share": ".1%",
}


def usual_reference(keys: Sequence[str]) -> Level | None:
    """The paper's level of these settings, None where it has none."""
    return KNOWN.get(tuple(keys), GENERAL)[1]


def write_stability(gathered: Gathered, levels: Levels, folder: Path, *, repeat: str | None = None) -> Path:
    """Write the page, `runs.csv`, `levels.csv`, `metrics.parquet`, pictures and `provenance.json` into `folder`.

    Where the runs can test a claim of the paper, `claims.csv` as well. `repeat`: the command that repeats all; where None, the
    multirun's own and that of the page. Returns the page.
    """
    runs = list(gathered.finished.values())
    tested = ledger(load_claims(), runs, full_steps())
    tested = tested[tested["verdict"] != NOT_RUN]
    write_csv(gathered.runs, folder / "runs.csv")
    write_csv(levels.table.reset_index(), folder / "levels.csv")
    with atomic_path(folder / "metrics.parquet") as path:
        gathered.metrics.to_parquet(path, index=False)
    if len(tested):
        write_csv(tested, folder / "claims.csv")
    about = described(gathered, levels) | {"repeat": repeat or _repeated(gathered, folder), "claims": len(tested) > 0}
    made = joined_provenance([run.provenance for run in runs])
    return write_sweep(folder, made | {"runs": len(runs), "sweep": about})


def described(gathered: Gathered, levels: Levels) -> dict[str, Any]:
    """What the page says and no table holds, JSON-ready."""
    runs = list(gathered.finished.values())
    settings = {key: {str(OmegaConf.select(run.settings, key)) for run in runs} for key in COMMON}
    rows = runs[0].scores[runs[0].scores["metric"] == SAMPLED_METRIC]
    sets = rows[rows["benchmark"] != MEAN]
    return {
        "keys": levels.keys,
        "reference": list(levels.reference),
        "shared": [f"{key.removesuffix('.name')}={found.pop()}" for key, found in settings.items() if len(found) == 1],
        "seeds": sorted({run.seed for run in runs}),
        "sets": dict(zip(sets["benchmark"], map(int, sets["n"]), strict=True)),
        "k": [int(k) for k in rows["k"].dropna().unique()],
    }


def read_table(file: Path, about: Mapping[str, Any]) -> pd.DataFrame:
    """levels.csv or runs.csv. A setting that is text stays so: `null` and `true` are values like any other."""
    text = [key for key, value in zip(about["keys"], about["reference"], strict=True) if isinstance(value, str)]
    types = dict.fromkeys(["seeds", *text], str)
    return pd.read_csv(file, dtype=types, keep_default_na=False, na_values=[""])


def read_levels(folder: Path, about: Mapping[str, Any]) -> Levels:
    """The levels that levels.csv has."""
    table, keys = read_table(folder / "levels.csv", about), about["keys"]
    index = pd.MultiIndex.from_frame(table[keys])
    rows = table.drop(columns=keys).set_axis(index).astype({"collapse_step": "Int64"})
    return Levels(keys, tuple(about["reference"]), rows)


def write_sweep(folder: Path, provenance: Mapping[str, Any]) -> Path:
    """The page and the pictures of the tables in `folder`; returns the page."""
    about = provenance["sweep"]
    levels, runs = read_levels(folder, about), read_table(folder / "runs.csv", about)
    template, _ = KNOWN.get(tuple(levels.keys), GENERAL)
    if len(levels.keys) == 2:
        draw_frontier(levels, folder / "frontier.png")
    else:
        draw_levels(levels, folder / "levels.png")
    draw_trajectories(pd.read_parquet(folder / "metrics.parquet"), runs, levels, folder / "trajectories.png")
    over = dict.fromkeys(one for metric in METRICS for one in levels.table[f"{metric} interval over"].dropna())
    ends = [(row[f"difference {metric} low"], row[f"difference {metric} high"]) for row, metric in _compared(levels)]
    return write_page(
        folder / f"{folder.resolve().name}.md",
        HERE / template,
        provenance,
        sweep=about,
        short=list(map(short, levels.keys)),
        reference=levels.label(levels.reference),
        runs=records(runs),
        states={state: count for state in STATES if (count := int((runs["state"] == state).sum()))},
        confidence=f"{CONFIDENCE:.0%}",
        over=over,
        tests=len(ends),
        apart=sum(low > 0 or high < 0 for low, high in ends),
        accuracies=_accuracies(levels),
        diagnostics=_diagnostics(levels),
        claims=tested_table(read_ledger(folder / "claims.csv")) if about["claims"] else "",
        window=COLLAPSE_WINDOW,
        entropy_share=f"{COLLAPSE_SHARE:g}",
        reward_share=f"{REWARD_SHARE:g}",
    )


def _compared(levels: Levels) -> list[tuple[dict[str, Any], str]]:
    """The level's row and the metric of each difference that has an interval."""
    pairs = product(levels.cells.values(), METRICS)
    return [(row, metric) for row, metric in pairs if pd.notna(row.get(f"difference {metric} low"))]


def _accuracies(levels: Levels) -> list[list[object]]:
    rows = []
    for level, row in levels.cells.items():
        cells = [f"{row['finished']} of {row['runs']}", "" if pd.isna(row["seeds"]) else row["seeds"]]
        for metric in METRICS:
            cells += [_interval(row, metric), _interval(row, f"difference {metric}", "+")]
        rows.append([*level, *cells])
    return rows


def _diagnostics(levels: Levels) -> list[list[object]]:
    rows = []
    for level, row in levels.cells.items():
        cells = ["" if pd.isna(row[name]) else f"{row[name]:{form}}" for name, form in DIAGNOSTICS.items()]
        step = "" if pd.isna(row["collapse_step"]) else f", from step {row['collapse_step']}"
        rows.append([*level, *cells, f"{row['collapsed']} of {row['begun']}{step}"])
    return rows


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
