"""The claim ledger as the section of a page that shows it.

Only columns that are named as the paper's hold what the paper says; everything else was measured on the runs of the ledger.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from oar.analysis.claims.claims import MIN_SEEDS, NOT_RUN, VERDICTS
from oar.analysis.claims.quantities import COLLAPSE_SHARE, COLLAPSE_WINDOW
from oar.analysis.reports.page import interval_text, table_lines
from oar.statistics.intervals import CONFIDENCE

PAPER = "paper"  # the profile of the paper's own setting

DIGITS = {"%": 1, "points": 1, "x": 2, "steps": 0, "reward": 3}  # by unit
NUMBERS = ["tolerance", "value", "low", "high", "problems"]
SIGNED = ("points", "steps", "reward")
RULES = f"""A claim says in which range a quantity lies: "A > B" that a difference lies above 0 (a ratio above 1), a number that
it is that number. The verdict compares this range with the {CONFIDENCE:.0%} interval of what was measured here:

- **reproduced**: the whole interval lies inside the claimed range, widened by the tolerance where there is one ("90 ± 1":
  between 89 and 91). For "A > B" the interval lies above 0.
- **within the confidence interval**: otherwise, where interval and range have a value in common. For "A > B" the interval
  holds 0, for a number it holds that number: neither borne out nor contradicted.
- **not reproduced**: otherwise. For "A > B" the interval lies below 0, for a number beside it.
- **too few seeds to tell**: fewer than {MIN_SEEDS} seeds, or runs of fewer steps than their profile has; which, stands beside it.
- **not run**: these runs cannot tell; the reason stands beside it.

Methods are paired by training seed and by problem. The interval covers two, so that a verdict holds only where both bear it
out: a bootstrap that draws problems (or training steps) and seeds, and Student's over seeds; alone where there is no other
(no scores of single problems, nothing that has problems). How often such intervals hold the true value was simulated:
results/coverage. Of one seed there is an interval over problems (or steps) alone, which says nothing of other seeds.
Which metric is the paper's is not known, so accuracy is tested under both. Tolerances are our assumptions, and so is what
counts as collapse: entropy whose mean over {COLLAPSE_WINDOW} steps falls below {COLLAPSE_SHARE:g} of what it was at first."""
OTHER_PROFILE = """On this profile model and task are not the paper's: claims about its numbers are not run, and what holds or
fails here says nothing of them."""


def claims_section(table: pd.DataFrame, profile: str) -> str:
    """Markdown: the rules, what was tested with its verdicts and intervals, what was not and why, and on which runs."""
    tested, missing = table[table["verdict"] != NOT_RUN], table[table["verdict"] == NOT_RUN]
    counts = ", ".join(f"{(table['verdict'] == verdict).sum()} {verdict}" for verdict in VERDICTS)
    parts = [
        f"# The paper's claims, tested on profile `{profile}`",
        RULES,
        *([OTHER_PROFILE] if profile != PAPER else []),
        f"{len(table)} tests of {table['claim_id'].nunique()} claims: {counts}.",
        "## Tested",
        tested_table(tested) if len(tested) else "Nothing: see below.",
        "## Not run",
        _not_run(missing) if len(missing) else "Nothing: every claim was tested.",
    ]
    if len(tested):
        parts += ["## What was tested on", _record(tested)]
    return "\n\n".join(parts)


def read_ledger(path: Path) -> pd.DataFrame:
    """A table of `oar.analysis.claims.ledger.ledger` that was written as CSV: all but NUMBERS is text."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    table[NUMBERS] = table[NUMBERS].apply(pd.to_numeric)
    return table.astype({"problems": "Int64"})


def tested_table(rows: pd.DataFrame) -> str:
    """Markdown: the claims that could be tested, each with its verdict and what it rests on."""
    header = ["claim of the paper", "the paper's range", "verdict", "quantity", "metric"]
    header += [f"measured here [{CONFIDENCE:.0%}]", "interval over", "problems x k", "seeds"]
    lines = []
    for row in rows.to_dict("records"):
        form = f"{'+' if row['unit'] in SIGNED else ''}.{DIGITS[row['unit']]}f"
        measured = " ".join(
            filter(None, [f"{row['value']:{form}}", interval_text(row["low"], row["high"], form), row["unit"]])
        )
        judged = f"**{row['verdict']}**" + (f" ({row['reason']})" if row["reason"] else "")
        claimed = row["paper_target"] + (f" ± {row['tolerance']:g}" if row["tolerance"] else "")
        sampled = f"{row['problems']} x {row['k']}" if row["k"] else ""
        lines.append([row["paper_claim"], claimed, judged, row["quantity"], row["metric"], measured])
        lines[-1] += [row["interval_over"], sampled, row["seeds"]]
    return table_lines(header, lines)


def _not_run(rows: pd.DataFrame) -> str:
    """A line per claim and reason: under both metrics it mostly is the same one."""
    return table_lines(
        ["claim of the paper", "why not"], rows[["paper_claim", "reason"]].drop_duplicates().to_numpy().tolist()
    )


def _record(rows: pd.DataFrame) -> str:
    identities: dict[str, set[str]] = {}
    for text, seeds in zip(rows["identities"], rows["seeds"], strict=True):
        for arm, found in json.loads(text).items():
            named = {f"{seed}: {identity}" for seed, identity in zip(seeds.split(", "), found, strict=True)}
            identities.setdefault(arm, set()).update(named)
    lines = [
        ["model", _distinct(rows["model"])],
        ["training steps", _distinct(rows["steps"])],
        *([f"settings of {arm}, hash by seed", ", ".join(sorted(found))] for arm, found in identities.items()),
        ["settings of the evaluation, hash", _distinct(rows["measure"])],
        ["template, digest", _distinct(rows["template"]) or "none: the bare question"],
        ["data", _distinct(map(_origins, rows["data"]))],
        ["versions", _distinct(rows["versions"])],
        ["device", _distinct(rows["device"])],
        ["git commit", _distinct(rows["git_commit"])],
    ]
    return table_lines(["", ""], lines)


def _origins(text: str) -> str:
    """By set where its problems come from."""
    sets = json.loads(text) if text else {}
    return "; ".join(f"{name}: {', '.join(map(_fact, about.items()))}" for name, about in sets.items())


def _fact(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
