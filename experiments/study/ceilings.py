"""How soon runs reach what they are to reach, and where that stands between the reference and the ceiling.

A run ends at the first point of its learning curve with a mean reward of `evaluation.stop_at`; one that never gets there is
"not by N". With few seeds no interval but their range is honest: it holds the median of all seeds with the probability that
`coverage` gives.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.study.alignment import ALIGNMENT, FIRST_STEPS, aligned_arms, alignment, draw_alignment, explained
from experiments.study.page import CURVES
from experiments.study.placement import causal_auc
from experiments.study.reward_curves import (
    RUN,
    beside,
    draw_rewards,
    earned,
    lower_thresholds,
    reward_curves,
    threshold_tables,
)
from experiments.study.same_seeds import draw_steps_at_rates, rates_tables, runs_at_rates, seed_by_seed
from experiments.study.standing import draw_standing, map_panels, of_enough_seeds, standing_panels, standings
from oar.analysis.reports.methods import CONTROL, KINDS, METHOD, ORACLE, kind, method_order
from oar.analysis.reports.page import records, write_csv, write_page
from oar.analysis.thresholds import MANY_SEEDS, STEPS, best_rates, best_runs
from oar.common.errors import DataError
from oar.common.files import atomic_path
from oar.common.provenance import machines
from oar.runs.folder import START_WEIGHTS, Run

TEMPLATE = Path(__file__).with_name("ceilings.md.j2")
CONTINUED = "train/continuation_tokens"
COSTS = ("steps", "tokens", "seconds")
MAP, STANDING, REWARDS, RATES = "map.png", "standing.png", "rewards.png", "rates.png"
# Keys of a study that hold names: what is typed below them is for no run.
OF_THE_STUDY = ("arms", "arms_of", "conditions", "expected", "in_words", "logged", "seeds_of")
AUC = "causal_auc"  # of a run: what its credit found


def write_ceilings(about: Mapping[str, Any], runs: Sequence[Run], folder: Path, provenance: Mapping[str, Any]) -> Path:
    """Write the page of a study that trains to a threshold, its table and its picture into `folder`; returns the page.

    `about["beside"]`: folders of earlier pages, whose runs stand on this one too, but for those that were run anew and those
    of a condition or an arm that has other settings now.
    """
    costs, curves, about = pd.DataFrame([run_costs(run) for run in runs]), reward_curves(runs), dict(about)
    earlier = [earlier_page(Path(folder)) for folder in about["beside"]]
    for table, points, told in earlier:
        changed = {key: _changed(told["study"][key], about[key]) for key in ("conditions", "arms")}
        costs, curves = beside(costs, table, **changed), beside(curves, points, **changed)
        for key in ("conditions", "arms", "kinds", "in_words", "expected"):
            about[key] = told["study"].get(key, {}) | about[key]
        about["overrides"] = [one for one in about["overrides"] if one in told["study"]["overrides"]]
        about["steps"] = sorted({*told["study"]["steps"], *about["steps"]})
    check_starts(costs)
    about |= {"runs": len(costs), "rates": sorted(costs["rate"].unique()), "seeds": int(costs["seed"].nunique())}
    made = [one for *_, told in earlier for one in (*told["study"].get("beside", []), told)]
    by_command = {one["command"]: one for one in made if one["command"] != provenance["command"]}
    about["beside"] = [
        {key: one.get(key) for key in ("command", "git_commit", "cpu", "gpu", "started")} for one in by_command.values()
    ]
    write_csv(in_order(costs, about), folder / STEPS)
    with atomic_path(folder / CURVES) as path:
        in_order(curves, about).to_parquet(path, index=False)
    return judge_ceilings(folder, {**provenance, "study": about})


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names that have other settings now."""
    return [name for name, settings in now.items() if before.get(name, settings) != settings]


def earlier_page(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Costs and curves of the runs of a page that was written to `folder`, and its provenance. Raises DataError without one."""
    for name in (STEPS, CURVES):
        if not (folder / name).is_file():
            raise DataError(f"beside must name folders of a page of ceilings, but {folder} has no {name}: correct it.")
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return read_costs(folder), pd.read_parquet(folder / CURVES), provenance


def read_costs(folder: Path) -> pd.DataFrame:
    """The table of runs of a page in `folder`; pages from before START_WEIGHTS and ALIGNMENT were known have none."""
    costs = pd.read_csv(folder / STEPS)
    return costs.reindex(columns=costs.columns.union([START_WEIGHTS, ALIGNMENT], sort=False))


def judge_ceilings(folder: Path, provenance: Mapping[str, Any]) -> Path:
    """The same from the table of runs that is there."""
    about = provenance["study"]
    costs, curves = read_costs(folder), pd.read_parquet(folder / CURVES)
    summary = summarised(costs, about["kinds"], about["reference"])
    first = fastest(costs, about["kinds"], about["reference"])
    at_best = summarised(one_row_an_arm(costs), about["kinds"], about["reference"])
    drawn = draw_ceilings(at_best, first, curves, costs, arms_in_order(about), folder)
    at_rates = runs_at_rates(costs, about["reference"])
    if len(at_rates):
        draw_steps_at_rates(at_rates, folder / RATES)
    aligned = aligned_arms(costs)
    if told := explained(aligned):
        write_csv(aligned.round(3), folder / f"{ALIGNMENT}.csv")
        draw_alignment(aligned, folder / f"{ALIGNMENT}.png")
    lower = lower_thresholds(curves, costs)
    write_csv(lower, folder / "thresholds.csv")
    return write_page(
        folder / f"{about['name']}.md",
        TEMPLATE,
        provenance,
        study=about,
        many_seeds=MANY_SEEDS,
        mixed=len({name for one in (provenance, *about.get("beside", [])) for name in machines(one)}) > 1,
        summary=summary,
        shown=shown,
        drawn=drawn,
        fastest=first,
        added=added([one["command"] for one in (*about.get("beside", []), provenance)], about["overrides"]),
        pairs=seed_by_seed(costs, about["kinds"], about["reference"]),
        at_rates=rates_tables(at_rates, about["reference"]),
        explained=told,
        first_steps=FIRST_STEPS,
        thresholds=threshold_tables(lower),
        coverages={seeds: coverage(seeds) for seeds in sorted(costs.groupby("condition")["seed"].nunique().unique())},
    )


def added(commands: Sequence[str], overrides: Sequence[str]) -> dict[str, int]:
    """What commands of this study add for their runs to the `overrides` of all runs, by how many do."""
    named = re.compile(rf"(?!({'|'.join(OF_THE_STUDY)})\.)[a-z_]+\.[^=]*=")
    typed = [[one for one in shlex.split(text) if named.match(one)] for text in commands]
    more = [" ".join(one for one in own if one not in overrides) for own in typed]
    return dict(Counter(filter(None, more)))


def arms_in_order(about: Mapping[str, Any]) -> list[str]:
    """Methods before controls before oracles, each as every page has them."""
    return sorted(about["arms"], key=lambda arm: (KINDS.index(about["kinds"][arm]), method_order(arm)))


def in_order(of_runs: pd.DataFrame, about: Mapping[str, Any]) -> pd.DataFrame:
    """By condition as the study has them, then by arm: runs of several pages are mixed."""
    order = {"condition": list(about["conditions"]), "arm": arms_in_order(about)}
    return of_runs.sort_values(
        RUN, kind="stable", key=lambda of: of.map(order[of.name].index) if of.name in order else of
    )


def run_costs(run: Run) -> dict[str, Any]:
    """Condition, arm, rate (of learning), seed, START_WEIGHTS, reached, and COSTS up to there (in all, where it did not).

    tokens: of the training completions, and of the continuations that value their states; seconds: of the training steps,
    without the points of the curve; start and last: of the curve; causal_auc, alignment: of the functions of these names.
    """
    bound, curve = run.settings.evaluation.stop_at, earned(run)
    if bound is None:
        raise DataError(f"{run.folder} must train to a threshold, but evaluation.stop_at is null: set it.")
    there = curve.index[curve >= bound]
    steps = int(there[0] if len(there) else run.metrics.index[-1])
    trained = run.metrics.loc[1:steps]
    tokens = trained["train/completion_length"].sum() * run.settings.learner.batch_size
    if CONTINUED in trained:
        tokens += trained[CONTINUED].sum()
    return {
        "condition": run.condition,
        "arm": run.arm,
        "rate": float(run.settings.learner.lr),
        "seed": run.seed,
        START_WEIGHTS: run.provenance.get(START_WEIGHTS),
        "reached": bool(len(there)),
        "steps": steps,
        "tokens": round(float(tokens)),
        "seconds": round(float(run.timings.loc[1:steps, "total"].sum()), 1),
        "start": float(curve.iloc[0]),
        "last": float(curve.iloc[-1]),
        AUC: round(causal_auc(run), 3),
        ALIGNMENT: round(alignment(run), 3),
    }


def check_starts(costs: pd.DataFrame) -> None:
    """Raises DataError where runs of a seed began with other weights: arms are compared under the same seeds."""
    known = costs.reindex(columns=[*RUN, START_WEIGHTS]).dropna()  # older pages do not say what their runs began with
    for (condition, seed), own in known.groupby(["condition", "seed"]):
        if own[START_WEIGHTS].nunique() > 1:
            raise DataError(
                f"Runs of {condition} under seed {seed} must begin with the same weights to be compared, but do not (another "
                "processor rounds otherwise and teaches another base model): give the new ones other seeds, with first_seed."
            )


def summarised(costs: pd.DataFrame, kinds: Mapping[str, str], reference: str) -> pd.DataFrame:
    """A row per condition, arm and rate: the median, least and most of COSTS over seeds, infinite where runs do not get there.

    last: the mean over seeds of the reward at the last point of the curve.

    best: whether this is the arm's best rate, by its median of steps; kind: of the arm; of the best rate alone its `standings`.
    """
    reached = costs.assign(run=costs["steps"], **{cost: costs[cost].where(costs["reached"], np.inf) for cost in COSTS})
    by = reached.groupby(["condition", "arm", "rate"], sort=False)
    told = {
        "seeds": ("seed", "nunique"),
        "reached": ("reached", "sum"),
        "longest": ("run", "max"),
        "last": ("last", "mean"),
        "auc": (AUC, "mean"),
        ALIGNMENT: (ALIGNMENT, "mean"),
    }
    rows = by.agg(**told).reset_index()
    for cost in COSTS:
        for name, how in (("", "median"), ("_low", "min"), ("_high", "max")):
            rows[f"{cost}{name}"] = by[cost].agg(how).to_numpy()
    rows["kind"] = rows["arm"].map(kinds)
    best = best_rates(costs)
    rows["best"] = rows["rate"] == [best[one] for one in zip(rows["condition"], rows["arm"], strict=True)]
    stands = standings(costs, kinds, reference)
    found = stands.reindex(list(zip(rows["condition"], rows["arm"], strict=True))).set_axis(rows.index)
    return rows.join(found.where(rows["best"]))


def one_row_an_arm(costs: pd.DataFrame) -> pd.DataFrame:
    """`best_runs`, as if of one rate: `summarised` puts those of an arm in one row."""
    return best_runs(costs).assign(rate=0.0)


def fastest(
    costs: pd.DataFrame, kinds: Mapping[str, str], reference: str
) -> dict[str, dict[str, dict[str, Any] | None]]:
    """By condition the rows of the reference, the best practical method and the ceiling; None where no such arm was run.

    Which these are, the medians over all of an arm's `best_runs` say, of arms `of_enough_seeds`; a method that fails under a seed
    stands behind those that do not, and of two alike the one of fewer seeds, then the one whose latest run is later. Their rows
    are of the seeds that all three were run under (of their own where there are none): seeds are more and less lucky.
    """
    found: dict[str, dict[str, dict[str, Any] | None]] = {}
    best = one_row_an_arm(costs)
    for condition, own in summarised(best, kinds, reference).groupby("condition", sort=False):
        practical = (own["kind"] == METHOD) & (own["arm"] != reference)
        sides = {reference: own["arm"] == reference, "practical": practical, "ceiling": own["kind"] == ORACLE}
        first = {}
        for name, chosen in sides.items():
            sound = of_enough_seeds(own[chosen]).assign(
                fails=lambda of: of["reached"] < of["seeds"], fewer=lambda of: -of["seeds"]
            )
            # The ceiling is the oracle with the lowest median alone, as `standings` has it.
            by = ["fails", "steps", "fewer", "steps_high"] if name == "practical" else ["steps"]
            first[name] = records(sound.sort_values(by, kind="stable").head(1))
        arms = [rows[0]["arm"] for rows in first.values() if rows]
        runs = best[(best["condition"] == condition) & best["arm"].isin(arms)]
        shared = runs[runs.groupby("seed")["arm"].transform("size") == len(arms)]
        rows = {row["arm"]: row for row in records(summarised(shared if len(shared) else runs, kinds, reference))}
        found[str(condition)] = {name: rows[one[0]["arm"]] if one else None for name, one in first.items()}
    return found


def regimes(costs: pd.DataFrame, kinds: Mapping[str, str], reference: str) -> dict[str, dict[str, Any]]:
    """Of `fastest` the steps and arms, JSON-ready; None: not reached."""
    return {
        condition: {
            name: {"arm": None, "steps": None}
            if row is None or not np.isfinite(row["steps"])
            else {"arm": row["arm"], "steps": float(row["steps"])}
            for name, row in sides.items()
        }
        for condition, sides in fastest(costs, kinds, reference).items()
    }


def committed_regimes(folder: Path) -> dict[str, dict[str, Any]]:
    """`regimes` of a page that was written to `folder`."""
    about = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["study"]
    return regimes(read_costs(folder), about["kinds"], about["reference"])


def coverage(seeds: int) -> float:
    """How often the range of `seeds` values holds the median of what they are drawn from: unless all fall on one side of it."""
    return 1 - 2 * 0.5**seeds


def shown(row: Mapping[str, Any], cost: str) -> str:
    """`90 [80, 110]`; `not by 200` where half of the runs or more do not get there."""
    median, low, high = (row[f"{cost}{end}"] for end in ("", "_low", "_high"))
    if not np.isfinite(median):
        return f"not by {row['longest']:,} steps"
    return f"{median:,.0f} [{low:,.0f}, {f'{high:,.0f}' if np.isfinite(high) else 'not reached'}]"


def draw_ceilings(
    summary: pd.DataFrame,
    first: Mapping[str, Mapping[str, Mapping[str, Any] | None]],
    curves: pd.DataFrame,
    costs: pd.DataFrame,
    arms: Sequence[str],
    folder: Path,
) -> list[str]:
    """Where each arm stands, and a map of it; where none does, for want of an oracle that is sooner, the rewards. Returns the
    files' names. `first`: of `fastest`."""
    panels = standing_panels(summary)
    if not panels:
        draw_rewards(curves, costs, arms, folder / REWARDS)
        return [REWARDS]
    drawn = {name: of for name, of in ((MAP, map_panels(panels, first)), (STANDING, panels)) if of}
    for name, of in drawn.items():
        draw_standing(of, arms, folder / name)
    return list(drawn)


def kind_of(arm: str, overrides: Sequence[str]) -> str:
    """METHOD, CONTROL or ORACLE: a method under method.control is a control, whatever it is."""
    return CONTROL if any(text.startswith("method.control=") for text in overrides) else kind(arm)
